// Memory for packed weights, in huge pages where the system gives them.
#pragma once

#include <stdint.h>

namespace tg {

// Zeros, `bytes` > 0, at a multiple of 64; NULL where there is no memory. Pages that nobody has touched, or out of the reserve,
// which rooms share.
void *room_create(int64_t bytes);
void room_destroy(void *room, int64_t bytes);

// Makes about so many bytes of pages, in the background, for rooms that will be asked for; 0 gives back those that were not.
// A room that is larger than what is left of them is made as without a reserve.
void room_reserve(int64_t bytes);

}  // namespace tg

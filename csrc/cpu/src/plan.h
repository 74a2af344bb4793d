// A list of operations that runs in one call.
#pragma once

#include "kernel.h"

namespace tg {

tg_plan *plan_create(KernelTable table, tg_pool *pool, const tg_plan_options *options);
int32_t plan_run(tg_plan *plan, const tg_step *step);
int32_t plan_follow(const tg_following *following, const int32_t *begun, int64_t begun_count, int32_t keep);
void plan_profile(tg_plan *plan, int64_t *nanoseconds);
void plan_destroy(tg_plan *plan);

}  // namespace tg

// A page is zeroed when it is first touched, which takes longer than to copy a weight into it. How much memory a model's weights
// will take is known long before they are there, while libraries are loaded by one thread: so pages are made then, by another.
#include "room.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>

#include "kernel.h"

namespace tg {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kPage = 4096;            // where there are no huge ones
constexpr int64_t kAlign = 64;             // of a room
constexpr int64_t kShelf = 8 * kHugePage;  // bytes of a shelf, unless a room is larger

// Whole huge pages that rooms share, one behind the other: a matrix is a little larger than its numbers, for its scales, and would
// leave most of its last page empty. A shelf goes back when all its rooms are gone, the pages of a large room when it is.
struct Shelf {
  char *begin;
  int64_t bytes, used;
  int64_t holders;  // rooms, and the reserve
  Shelf *before;

  int64_t left() const { return bytes - used; }
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
std::atomic<int32_t> wanting{0};  // those who wait for the lock, before whom the maker of pages steps back
Shelf *shelves = nullptr;         // the last that was made
Shelf *open_shelf = nullptr;      // where there is most left, outside of the reserve
Shelf *reserve = nullptr;         // what was reserved
char *made = nullptr;             // the reserve's pages before it are there

struct Locked {
  Locked() {
    wanting.fetch_add(1);
    pthread_mutex_lock(&lock);
    wanting.fetch_sub(1);
  }
  ~Locked() { pthread_mutex_unlock(&lock); }
};

// So many bytes at a multiple of a huge page's size; `bytes` is one too. `kind`: more flags of mmap.
char *map(int64_t bytes, int kind) {
  void *memory = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | kind, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char *begin = static_cast<char *>(memory);
  const int64_t before = round_up(reinterpret_cast<intptr_t>(begin), kHugePage) - reinterpret_cast<intptr_t>(begin);
  if (before > 0) munmap(begin, before);
  if (before < kHugePage) munmap(begin + before + bytes, kHugePage - before);
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  return begin + before;
}

// Whole huge pages at least; null where there is no memory.
Shelf *add_shelf(int64_t bytes, int kind) {
  Shelf *shelf = static_cast<Shelf *>(malloc(sizeof(Shelf)));
  char *begin = shelf == nullptr ? nullptr : map(bytes, kind);
  if (begin == nullptr) return free(shelf), nullptr;
  *shelf = {begin, bytes, 0, 0, shelves};
  return shelves = shelf;
}

void let_go(Shelf *shelf) {
  if (--shelf->holders > 0) return;
  Shelf **link = &shelves;
  while (*link != shelf) link = &(*link)->before;
  *link = shelf->before;
  if (open_shelf == shelf) open_shelf = nullptr;
  if (shelf->bytes > 0) munmap(shelf->begin, shelf->bytes);
  free(shelf);
}

// Makes the next huge page that no room has yet; false when there is none. By touching it, since that keeps nobody who maps
// other memory of the process waiting, as asking the system for pages would.
bool make_page() {
  const Locked locked;
  if (reserve == nullptr) return false;
  char *next = reserve->begin + round_up(reserve->used, kHugePage);
  if (made < next) made = next;
  if (made >= reserve->begin + reserve->bytes) return false;
  for (int64_t at = 0; at < kHugePage; at += kPage) *const_cast<volatile char *>(made + at) = 0;
  made += kHugePage;
  return true;
}

void *make_pages(void *) {
  do {
    while (wanting.load() > 0) sched_yield();
  } while (make_page());
  return nullptr;
}

// The reserve is of so many bytes from now on, whole huge pages; pages of the one before that no room has go back.
bool replace(int64_t bytes) {
  const Locked locked;
  if (reserve != nullptr) {
    const int64_t kept = round_up(reserve->used, kHugePage);
    if (kept < reserve->bytes) munmap(reserve->begin + kept, reserve->bytes - kept);
    reserve->bytes = kept;
    let_go(reserve);
  }
  reserve = bytes == 0 ? nullptr : add_shelf(bytes, MAP_NORESERVE);  // a guess, which may be too large
  if (reserve == nullptr) return false;
  reserve->holders = 1;
  made = reserve->begin;
  return true;
}

Shelf *shelf_for(int64_t bytes) {
  if (reserve != nullptr && reserve->left() >= bytes) return reserve;
  if (open_shelf != nullptr && open_shelf->left() >= bytes) return open_shelf;
  // More than there can be is refused now, not when it is touched.
  Shelf *shelf = add_shelf(most(round_up(bytes, kHugePage), kShelf), 0);
  if (shelf != nullptr && (open_shelf == nullptr || open_shelf->left() < shelf->bytes - bytes)) open_shelf = shelf;
  return shelf;
}

}  // namespace

void *room_create(int64_t bytes) {
  const Locked locked;
  const int64_t size = round_up(bytes, kAlign);
  Shelf *shelf = shelf_for(size);
  if (shelf == nullptr) return nullptr;
  char *room = shelf->begin + shelf->used;
  shelf->used += size;
  shelf->holders++;
  return room;
}

void room_destroy(void *room, int64_t bytes) {
  const Locked locked;
  char *begin = static_cast<char *>(room);
  Shelf *shelf = shelves;
  while (begin < shelf->begin || begin >= shelf->begin + shelf->bytes) shelf = shelf->before;
  if (shelf->holders > 1) {
    const int64_t at = begin - shelf->begin, first = round_up(at, kHugePage), last = (at + bytes) / kHugePage * kHugePage;
    if (first < last) madvise(shelf->begin + first, last - first, MADV_DONTNEED);
  }
  let_go(shelf);
}

void room_reserve(int64_t bytes) {
  if (!replace(bytes < kHugePage ? 0 : round_up(bytes, kHugePage))) return;
  pthread_attr_t detached;
  pthread_t thread;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_create(&thread, &detached, make_pages, nullptr);  // where there is no thread, pages come when they are touched
  pthread_attr_destroy(&detached);
}

}  // namespace tg

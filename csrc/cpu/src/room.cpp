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
constexpr int64_t kPage = 4096;  // where there are no huge ones

// What is left of the reserve: [begin, end). Huge pages before `made` are there.
struct Reserve {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  char *begin = nullptr, *end = nullptr, *made = nullptr;
};
Reserve reserve;

std::atomic<int32_t> wanting{0};  // those who wait for the lock, before whom the maker of pages steps back

struct Locked {
  Locked() {
    wanting.fetch_add(1);
    pthread_mutex_lock(&reserve.lock);
    wanting.fetch_sub(1);
  }
  ~Locked() { pthread_mutex_unlock(&reserve.lock); }
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

// A part of the reserve, from its beginning, or NULL.
char *take(int64_t bytes) {
  const Locked locked;
  if (reserve.end - reserve.begin < bytes) return nullptr;
  char *room = reserve.begin;
  reserve.begin += bytes;
  return room;
}

// Makes the next huge page of what nobody has taken yet; false when there is none. By touching it, since that keeps nobody who maps
// other memory of the process waiting, as asking the system for pages would.
bool make_page() {
  const Locked locked;
  if (reserve.made < reserve.begin) reserve.made = reserve.begin;
  if (reserve.made >= reserve.end) return false;
  for (int64_t at = 0; at < kHugePage; at += kPage) *const_cast<volatile char *>(reserve.made + at) = 0;
  reserve.made += kHugePage;
  return true;
}

void *make_pages(void *) {
  do {
    while (wanting.load() > 0) sched_yield();
  } while (make_page());
  return nullptr;
}

// The reserve is this from now on; what was left of the one before goes back.
void replace(char *begin, int64_t bytes) {
  const Locked locked;
  if (reserve.end > reserve.begin) munmap(reserve.begin, reserve.end - reserve.begin);
  reserve.begin = reserve.made = begin;
  reserve.end = begin + bytes;
}

// Whole huge pages; `bytes` are such.
char *create_pages(int64_t bytes) {
  char *room = take(bytes);
  return room != nullptr ? room : map(bytes, 0);  // more than there can be is refused now, not when it is touched
}

// What is smaller than a huge page shares some with others, one behind the other, which go back together when all are gone.
class Shelves {
 public:
  void *create(int64_t bytes) {
    pthread_mutex_lock(&lock_);
    void *place = put(round_up(bytes, kAlign));
    pthread_mutex_unlock(&lock_);
    return place;
  }
  void destroy(void *place) {
    pthread_mutex_lock(&lock_);
    drop(static_cast<char *>(place));
    pthread_mutex_unlock(&lock_);
  }

 private:
  static constexpr int64_t kAlign = 64, kBytes = 8 * kHugePage;
  struct Shelf {
    char *begin;
    int64_t used, things;
    Shelf *before;
  };

  void *put(int64_t bytes) {
    if (last_ == nullptr || last_->used + bytes > kBytes) {
      Shelf *shelf = static_cast<Shelf *>(malloc(sizeof(Shelf)));
      char *begin = shelf == nullptr ? nullptr : create_pages(kBytes);
      if (begin == nullptr) return free(shelf), nullptr;
      *shelf = {begin, 0, 0, last_};
      last_ = shelf;
    }
    char *place = last_->begin + last_->used;
    last_->used += bytes;
    last_->things++;
    return place;
  }

  void drop(const char *place) {
    Shelf **link = &last_;
    while (place < (*link)->begin || place >= (*link)->begin + kBytes) link = &(*link)->before;
    Shelf *shelf = *link;
    if (--shelf->things > 0) return;
    *link = shelf->before;
    munmap(shelf->begin, kBytes);
    free(shelf);
  }

  pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
  Shelf *last_ = nullptr;
};
Shelves shelves;

}  // namespace

void *room_create(int64_t bytes) {
  return bytes < kHugePage ? shelves.create(bytes) : create_pages(round_up(bytes, kHugePage));
}

void room_destroy(void *room, int64_t bytes) {
  if (bytes < kHugePage) return shelves.destroy(room);
  munmap(room, round_up(bytes, kHugePage));
}

void room_reserve(int64_t bytes) {
  const int64_t whole = bytes < kHugePage ? 0 : round_up(bytes, kHugePage);
  char *memory = whole == 0 ? nullptr : map(whole, MAP_NORESERVE);  // a guess, which may be too large
  replace(memory, memory == nullptr ? 0 : whole);
  if (memory == nullptr) return;
  pthread_attr_t detached;
  pthread_t thread;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_create(&thread, &detached, make_pages, nullptr);  // where there is no thread, pages come when they are touched
  pthread_attr_destroy(&detached);
}

}  // namespace tg

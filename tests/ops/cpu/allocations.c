/* Counts what a process allocates: preloaded, it stands before the C library's allocator. */
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static int count;

int textgen_allocations(void) { return __atomic_load_n(&count, __ATOMIC_RELAXED); }

static void counted(void) { __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED); }

void *malloc(size_t size) { return counted(), __libc_malloc(size); }
void *calloc(size_t members, size_t size) { return counted(), __libc_calloc(members, size); }
void *realloc(void *old, size_t size) { return counted(), __libc_realloc(old, size); }
void *memalign(size_t alignment, size_t size) { return counted(), __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return counted(), __libc_memalign(alignment, size); }
int posix_memalign(void **to, size_t alignment, size_t size) {
  counted();
  *to = __libc_memalign(alignment, size);
  return *to == NULL ? 12 : 0;
}

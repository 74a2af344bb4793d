// Worker threads that run one function side by side.
#pragma once

#include "kernel.h"

namespace tg {

struct Pool;
using Task = void (*)(void *argument, int32_t worker);

tg_pool *pool_create(int32_t workers, int64_t spin_us, const int32_t *cpus);
void pool_destroy(tg_pool *pool);
int32_t pool_workers(const tg_pool *pool);
// Calls task(argument, worker) on every worker, on this thread as worker 0, and returns when all have returned.
void pool_run(tg_pool *pool, Task task, void *argument);

void set_error(const char *sentence);
const char *get_error();

}  // namespace tg

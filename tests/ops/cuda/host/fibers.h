// Runs the threads of a block as fibers, which change only where threads wait for each other.
//
// Stricter than a GPU: threads run in an order drawn from a seed, one warp as far as it gets before the next begins, so that a
// missing barrier gives other numbers; shared memory is NaN at first and nobody may touch the page behind it; threads that meet in different
// operations, or never, end the launch with a message.
#pragma once

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

namespace simt {

constexpr u32 LANES = 32, MAX_THREADS = 1024, MAX_COPIES = 512;
constexpr size_t STACK = 64 << 10, PAGE = 4096, MAX_SHARED = 256 << 10;

struct Index {
    u32 x, y, z;
};

struct Copy {
    void* to;
    const void* from;
    u32 group, bytes;
};

struct Fiber {
    void* stack;  // where it goes on
    Index thread;
    bool done;
    const u32* awaits;  // it goes on when this is no longer `seen`
    u32 seen;
    u32 groups, copies;
    Copy pending[MAX_COPIES];
};

// Where a warp, or the block, meets.
struct Meeting {
    const char* operation;
    u32 arrived, generation;
    const void* in[LANES];
    void* out[LANES];
};

struct Block {
    Index block, grid;
    u32 threads, alive;
    void* scheduler;  // its stack
    Fiber* current;
    Fiber fibers[MAX_THREADS];
    Meeting barrier, warps[MAX_THREADS / LANES];
    unsigned char* shared;
    void (*kernel)(const void*);
    const void* params;
    const char* error;
};

static Block* now;  // a library runs one launch at a time
static char message[256];

// Puts the callee's registers on the stack, stores the stack's address and goes on at another one.
extern "C" void simt_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
    .text
    .type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size simt_switch, .-simt_switch
)");
constexpr size_t SAVED = 6;  // words below the address to go on at
#else
#error "simt.h has no switch of stacks for this processor"
#endif

static void leave() { simt_switch(&now->current->stack, now->scheduler); }

static void fail(const char* what, const char* operation = "") {
    if (now->error == nullptr) {
        const Index& block = now->block;
        snprintf(message, sizeof message, "%s%s%s (thread %u of block %u, %u, %u)", what, *operation ? ": " : "",
                 operation, now->current->thread.x, block.x, block.y, block.z);
        now->error = message;
    }
    leave();  // for good: the scheduler ends the launch
}

static void begin() {
    now->kernel(now->params);
    if (now->current->copies != 0) fail("asynchronous copies are still under way at the end");
    now->current->done = true;
    --now->alive;
    leave();
}

// All `expected` threads come here; the last does what is to be done.
template <class Work>
static void meet(Meeting& at, u32 expected, u32 seat, const char* operation, const void* in, void* out, Work work) {
    if (at.arrived != 0 && strcmp(at.operation, operation) != 0) fail("threads meet in different operations", operation);
    at.operation = operation;
    if (seat < LANES) {
        at.in[seat] = in;
        at.out[seat] = out;
    }
    if (++at.arrived == expected) {
        work(at);
        at.arrived = 0;
        ++at.generation;
        return;
    }
    now->current->awaits = &at.generation;
    now->current->seen = at.generation;
    leave();
}

template <class Work>
static void warp(const char* operation, u32 mask, const void* in, void* out, Work work) {
    if (mask != 0xffffffffu) fail("only whole warps are known here", operation);
    const u32 thread = now->current->thread.x;
    meet(now->warps[thread / LANES], LANES, thread % LANES, operation, in, out, work);
}

static u64 random_next(u64& state) {  // SplitMix64
    u64 z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void shuffle(u32* items, u32 count, u64& seed) {
    for (u32 i = count; i > 1; --i) {
        const u32 j = static_cast<u32>(random_next(seed) % i), item = items[i - 1];
        items[i - 1] = items[j];
        items[j] = item;
    }
}

// Lets each lane of a warp go on as far as it gets, in the order given. Whether one did.
static bool run_warp(u32 warp, const u32* lanes) {
    bool moved = false;
    for (u32 i = 0; i < LANES && now->error == nullptr; ++i) {
        Fiber& fiber = now->fibers[warp * LANES + lanes[i]];
        if (fiber.done || (fiber.awaits != nullptr && *fiber.awaits == fiber.seen)) continue;
        fiber.awaits = nullptr;
        now->current = &fiber;
        moved = true;
        simt_switch(&now->scheduler, fiber.stack);
    }
    return moved;
}

static void tell_who_waits() {
    for (u32 i = 0; i < now->threads; ++i) {
        const Fiber& fiber = now->fibers[i];
        if (fiber.done) continue;
        const Meeting& at = fiber.awaits == &now->barrier.generation ? now->barrier : now->warps[i / LANES];
        snprintf(message, sizeof message, "thread %u of block %u, %u, %u waits for threads that never come: %s", i,
                 now->block.x, now->block.y, now->block.z, at.operation);
        now->error = message;
        return;
    }
}

// Runs a block to its end, or an error. Between two barriers one warp goes as far as it gets before the next begins, in an
// order drawn anew: no two warps can be farther apart.
static void run_block(u64& seed) {
    u32 warps[MAX_THREADS / LANES], lanes[LANES];
    const u32 count = now->threads / LANES;
    for (u32 i = 0; i < count; ++i) warps[i] = i;
    for (u32 i = 0; i < LANES; ++i) lanes[i] = i;
    memset(&now->barrier, 0, sizeof now->barrier);
    memset(now->warps, 0, sizeof now->warps);
    now->alive = now->threads;
    u32 generation = ~0u;
    while (now->alive != 0) {
        if (generation != now->barrier.generation) {
            generation = now->barrier.generation;
            shuffle(warps, count, seed);
            shuffle(lanes, LANES, seed);
        }
        bool moved = false;
        for (u32 i = 0; i < count && !moved; ++i) moved = run_warp(warps[i], lanes);
        if (!moved) tell_who_waits();
        if (now->error != nullptr) return;
    }
}

static void prepare(Fiber& fiber, unsigned char* stack, u32 thread) {
    fiber.done = false;
    fiber.awaits = nullptr;
    fiber.groups = fiber.copies = 0;
    fiber.thread = {thread, 0, 0};
    void** top = reinterpret_cast<void**>(stack + STACK) - 2;  // aligned as behind a call
    *top = reinterpret_cast<void*>(&begin);
    fiber.stack = top - SAVED;
}

static constexpr u32 first(u32 threads, u32 = 0) { return threads; }

// Null, or what went wrong.
static const char* launch(void (*kernel)(const void*), u32 most, const void* params, const u32* grid, u32 threads,
                          u32 shared_bytes, u64 seed) {
    if (threads == 0 || threads > most || threads % LANES != 0) return "the block has a size that the kernel is not for";
    if (shared_bytes > MAX_SHARED) return "no GPU has so much shared memory";
    const size_t bytes = sizeof(Block) + MAX_THREADS * STACK + MAX_SHARED + PAGE;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return "no memory for the stacks of the threads";
    unsigned char* stacks = static_cast<unsigned char*>(memory);
    unsigned char* shared = stacks + MAX_THREADS * STACK;
    mprotect(shared + MAX_SHARED, PAGE, PROT_NONE);
    now = reinterpret_cast<Block*>(shared + MAX_SHARED + PAGE);
    now->kernel = kernel;
    now->params = params;
    now->threads = threads;
    now->shared = shared + MAX_SHARED - (shared_bytes + 15) / 16 * 16;
    now->grid = {grid[0], grid[1], grid[2]};
    for (u32 block = 0; block < grid[0] * grid[1] * grid[2] && now->error == nullptr; ++block) {
        now->block = {block % grid[0], block / grid[0] % grid[1], block / grid[0] / grid[1]};
        for (u32 i = 0; i < threads; ++i) prepare(now->fibers[i], stacks + i * STACK, i);
        memset(now->shared, 0xff, shared_bytes);
        run_block(seed);
    }
    const char* error = now->error;
    now = nullptr;
    munmap(memory, bytes);
    return error;
}

}  // namespace simt

// Workloads on two threads, after the usual microbenchmarks: larson, xmalloc-test, cache-scratch, mstress, alloc-test, glibc's with threads, and
// a mix. Arguments: the workload, and what its length is divided by.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

static unsigned next(unsigned &x) { return (x = x * 1664525 + 1013904223) >> 8; }

// Blocks of random sizes in slots; every 20,000 steps the slots change hands.
static void larson(int rounds) {
    const int slots = 2000;
    std::vector<char *> halves[2];
    for (auto &half : halves) half.assign(slots, nullptr);
    for (int round = 0; round < rounds; round++) {
        std::thread threads[2];
        for (int t = 0; t < 2; t++)
            threads[t] = std::thread([&, t] {
                auto &half = halves[(t + round) % 2];
                unsigned x = round * 2 + t;
                for (int i = 0; i < 20000; i++) {
                    char *&slot = half[next(x) % slots];
                    free(slot);
                    size_t size = 8 + next(x) % 1000;
                    slot = (char *)malloc(size);
                    slot[0] = slot[size - 1] = 1;
                }
            });
        for (auto &thread : threads) thread.join();
    }
    for (auto &half : halves)
        for (char *block : half) free(block);
}

// One thread allocates batches, the other frees them.
static void xmalloc(int batches) {
    struct Batch { Batch *next; void *blocks[120]; };
    std::atomic<Batch *> stack{nullptr};
    std::atomic<int> waiting{0};
    std::thread freer([&] {
        for (int done = 0; done < batches;) {
            Batch *batch = stack.exchange(nullptr);
            if (!batch) { std::this_thread::yield(); continue; }
            while (batch) {
                for (void *block : batch->blocks) free(block);
                Batch *rest = batch->next;
                free(batch);
                batch = rest;
                done++;
                waiting--;
            }
        }
    });
    unsigned x = 1;
    for (int i = 0; i < batches; i++) {
        while (waiting > 50) std::this_thread::yield();
        Batch *batch = (Batch *)malloc(sizeof(Batch));
        for (void *&block : batch->blocks) memset(block = malloc(16 + next(x) % 200), 1, 16);
        waiting++;
        batch->next = stack.load();
        while (!stack.compare_exchange_weak(batch->next, batch)) {}
    }
    freer.join();
}

// Every thread writes to a small block that it has just got, many times.
static void scratch(int rounds) {
    std::thread threads[2];
    char *first[2] = {(char *)malloc(8), (char *)malloc(8)};
    for (int t = 0; t < 2; t++)
        threads[t] = std::thread([=] {
            free(first[t]);
            for (int i = 0; i < rounds; i++) {
                volatile char *block = (char *)malloc(8);
                for (int j = 0; j < 400; j++) block[j % 8]++;
                free((void *)block);
            }
        });
    for (auto &thread : threads) thread.join();
}

// Blocks of all sizes, kept for different times, some passed to the other thread.
static void mstress(int rounds) {
    std::vector<std::atomic<void *>> shared(400);
    std::thread threads[2];
    for (int t = 0; t < 2; t++)
        threads[t] = std::thread([&, t] {
            unsigned x = 77 + t;
            std::vector<void *> own;
            for (int i = 0; i < rounds; i++) {
                size_t size = next(x) % 64 == 0 ? next(x) % 40000 : 8 + next(x) % 400;
                void *block = calloc(1, size);
                unsigned what = next(x) % 8;
                if (what == 0) block = shared[next(x) % shared.size()].exchange(block);
                if (what < 4) free(block); else own.push_back(block);
                if (own.size() > 3000)
                    for (int j = 0; j < 1500; j++) { free(own.back()); own.pop_back(); }
            }
            for (void *block : own) free(block);
        });
    for (auto &thread : threads) thread.join();
    for (auto &block : shared) free(block.load());
}

// Every thread for itself: requests, frees and reallocations.
static void mixed(int rounds) {
    std::thread threads[2];
    for (int t = 0; t < 2; t++)
        threads[t] = std::thread([=] {
            unsigned x = 5 + t;
            std::vector<void *> blocks(1000);
            for (int i = 0; i < rounds; i++) {
                void *&block = blocks[next(x) % blocks.size()];
                if (next(x) % 4 == 0) block = realloc(block, 1 + next(x) % 2000);
                else { free(block); block = malloc(1 + next(x) % 500); }
            }
            for (void *block : blocks) free(block);
        });
    for (auto &thread : threads) thread.join();
}

// Every thread for itself: a block of each power of two is as likely as any other, up to 4 KiB; random ones are replaced.
static void powers(int rounds) {
    std::thread threads[2];
    for (int t = 0; t < 2; t++)
        threads[t] = std::thread([=] {
            unsigned x = 11 + t;
            std::vector<char *> blocks(4096);
            for (int i = 0; i < rounds; i++) {
                char *&block = blocks[next(x) % blocks.size()];
                free(block);
                size_t most = 16u << next(x) % 9;
                size_t size = most / 2 + 1 + next(x) % (most / 2);
                block = (char *)malloc(size);
                block[0] = block[size - 1] = 1;
            }
            for (char *block : blocks) free(block);
        });
    for (auto &thread : threads) thread.join();
}

// Every thread for itself: many small blocks and few large ones, up to 32 KiB, in proportion to 1 / size squared; half of the steps only free.
static void falling(int rounds) {
    std::thread threads[2];
    for (int t = 0; t < 2; t++)
        threads[t] = std::thread([=] {
            unsigned x = 23 + t;
            std::vector<char *> blocks(1024);
            for (int i = 0; i < rounds; i++) {
                char *&block = blocks[next(x) % blocks.size()];
                if (block) { free(block); block = nullptr; continue; }
                size_t size = 8 * 65536 / (1 + next(x) % 65536);
                if (size < 4) size = 4;
                if (size > 32768) size = 32768;
                block = (char *)malloc(size);
                block[0] = block[size - 1] = 1;
            }
            for (char *block : blocks) free(block);
        });
    for (auto &thread : threads) thread.join();
}

int main(int count, char **arguments) {
    const char *name = arguments[1];
    int by = count > 2 ? atoi(arguments[2]) : 1;
    if (!strcmp(name, "larson")) larson(80 / by);
    else if (!strcmp(name, "xmalloc")) xmalloc(30000 / by);
    else if (!strcmp(name, "scratch")) scratch(300000 / by);
    else if (!strcmp(name, "mstress")) mstress(1500000 / by);
    else if (!strcmp(name, "mixed")) mixed(4000000 / by);
    else if (!strcmp(name, "powers")) powers(4000000 / by);
    else if (!strcmp(name, "falling")) falling(16000000 / by);
    else return 1;
    puts(name);
}

// Forks while other threads allocate; every child must be able to allocate. Prints how many of 400 could not.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

int main() {
    std::atomic<bool> end{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; t++)
        threads.emplace_back([&, t] {
            unsigned x = t;
            std::vector<void *> blocks(500);
            while (!end) {
                x = x * 1664525 + 1013904223;
                void *&block = blocks[(x >> 8) % 500];
                free(block);
                block = malloc((x >> 16) % 60000);
            }
            for (void *block : blocks) free(block);
        });
    int failed = 0;
    for (int i = 0; i < 400; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20); // A child that hangs is killed.
            for (int j = 0; j < 50; j++) {
                void *small = malloc(100), *large = malloc(100000);
                memset(large, 1, 100000);
                free(small);
                free(large);
            }
            _exit(0);
        }
        int status = 1;
        waitpid(child, &status, 0);
        failed += status != 0;
    }
    end = true;
    for (auto &thread : threads) thread.join();
    printf("%d\n", failed);
    return failed != 0;
}

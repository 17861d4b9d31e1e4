// Frees 12 MB, less than what the heap gives back at once, and waits, for a minute at most, until they are gone from the process without another call to
// the heap. A child of a fork does the same meanwhile.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

static long resident() {
    long pages = 0, all;
    FILE *file = fopen("/proc/self/statm", "r");
    if (fscanf(file, "%ld %ld", &all, &pages) != 2) abort();
    fclose(file);
    return pages * 4096;
}

static bool comes_to_rest() {
    long start = resident();
    void *blocks[12];
    for (void *&block : blocks) memset(block = malloc(1 << 20), 1, 1 << 20);
    for (void *block : blocks) free(block);
    if (resident() < start + (8 << 20)) return puts("nothing was kept"), false;
    for (int i = 0; i < 600; i++) {
        usleep(100000);
        if (resident() < start + (4 << 20)) return true;
    }
    return puts("the memory is kept"), false;
}

int main() {
    pid_t child = fork();
    bool good = comes_to_rest();
    if (child == 0) _exit(!good);
    int status = 1;
    waitpid(child, &status, 0);
    return !good || status != 0;
}

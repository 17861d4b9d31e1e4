// Runs a program and writes down how it ended, its processor time, its time from start to end, and the most memory that it had. Linux counts the
// memory of the process that starts a program as the program's, until it is another program: hence this one, which has next to none.
// Arguments: the file to write to, a library to preload or nothing, the program, and its arguments.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile pid_t child;

static double now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int, char **arguments) {
    signal(SIGTERM, [](int number) { if (child > 0) kill(child, number); });
    double start = now();
    child = fork();
    if (child == 0) {
        if (*arguments[2]) setenv("LD_PRELOAD", arguments[2], 1);
        execv(arguments[3], arguments + 3);
        _exit(127);
    }
    int status;
    rusage usage;
    while (wait4(child, &status, 0, &usage) != child) {}
    double wall = now() - start;
    double seconds = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    FILE *file = fopen(arguments[1], "w");
    if (!file) return 1;
    fprintf(file, "%d %.6f %.6f %ld\n", status, seconds, wall, usage.ru_maxrss);
    return fclose(file) != 0;
}

// Follows the header of liballotment.so, which comes before this text.
#include <cstdio>
#include <cstdlib>
#pragma weak allotment_figures
#pragma weak allotment_pressure

int main() {
    if (!allotment_pressure || !allotment_figures) return puts("the functions are missing"), 1;
    enum { COUNT = 200000 };
    static void *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) blocks[i] = malloc(100);
    AllotmentFigures full = allotment_figures();
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    if (allotment_pressure(0) != 0) return puts("no need, but memory went back"), 1;
    size_t gone = allotment_pressure(1);
    AllotmentFigures after = allotment_figures();
    bool good = full.used >= 100 * COUNT && full.peak >= full.used && after.used < full.used / 10
        && after.purged >= gone && after.purged >= 100 * COUNT / 2 && after.dirty <= full.used / 10
        && after.committed >= full.used && after.reserved >= after.committed;
    printf("%zu in use, %zu gone, %zu dirty\n", after.used, gone, after.dirty);
    return !good;
}

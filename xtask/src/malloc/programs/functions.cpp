// Work for a C and C++ program: every function once, with its contract checked. Prints what differs.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <new>

static int wrong;
#define EXPECT(what) do { if (!(what)) { printf("%s\n", #what); wrong = 1; } } while (0)
static bool aligned(void *block, size_t to) { return (uintptr_t)block % to == 0; }

int main() {
    volatile size_t huge = SIZE_MAX / 2 + 1;
    for (size_t size = 0; size < 100000; size += 1 + size / 7) {
        char *block = (char *)malloc(size);
        EXPECT(block && aligned(block, 16) && malloc_usable_size(block) >= size);
        memset(block, 5, size);
        block = (char *)realloc(block, size + 1000);
        EXPECT(block && (size == 0 || (block[0] == 5 && block[size - 1] == 5)));
        block = (char *)realloc(block, size / 2 + 1);
        EXPECT(block && (size < 2 || block[size / 2 - 1] == 5));
        free(block);
        block = (char *)calloc(size, 3);
        for (size_t i = 0; i < size * 3; i++) EXPECT(block[i] == 0);
        free(block);
    }
    for (size_t align = 8; align <= 1 << 20; align *= 2) {
        void *block = nullptr;
        EXPECT(posix_memalign(&block, align, 100) == 0 && aligned(block, align));
        block = realloc(block, 5000);
        EXPECT(block);
        free(block);
        EXPECT(aligned(block = aligned_alloc(align, align), align));
        free(block);
        EXPECT(aligned(block = memalign(align, 70000), align));
        free(block);
    }
    void *block = &wrong;
    EXPECT(posix_memalign(&block, 24, 8) == EINVAL && block == &wrong);
    errno = 0;
    EXPECT(malloc(huge) == nullptr && errno == ENOMEM);
    errno = 0;
    EXPECT(calloc(huge, 3) == nullptr && errno == ENOMEM);
    errno = 0;
    EXPECT(reallocarray(nullptr, huge, 3) == nullptr && errno == ENOMEM);
    EXPECT(new (std::nothrow) char[huge - 1] == nullptr);
    free(nullptr);
    EXPECT(realloc(malloc(5), 0) == nullptr);
    EXPECT(malloc_usable_size(nullptr) == 0);
    EXPECT(aligned(block = valloc(10), 4096));
    free(block);
    EXPECT(aligned(block = pvalloc(10), 4096) && malloc_usable_size(block) >= 4096);
    free(block);
    block = malloc(1 << 24);
    EXPECT(mallinfo2().uordblks + mallinfo2().hblkhd >= 1 << 24);
    free(block);
    malloc_trim(0);
    printf("%d\n", wrong);
    return wrong;
}

// Asks for more than a device has, as PyTorch does from C++: the library must throw std::bad_alloc, since PyTorch takes null for a block.
// Arguments: liballotment.so, built with the feature `gpu`, and the stand-in driver's library.
#include <cstdio>
#include <dlfcn.h>
#include <functional>
#include <new>
#include <sys/types.h>

struct Guard {
    int *freed;
    ~Guard() { ++*freed; }
};

// Also as a library, which a program that is not C++ loads, as Python does.
extern "C" int run(const char *path, const char *path_of_driver) {
    void *driver = dlopen(path_of_driver, RTLD_NOW | RTLD_GLOBAL);
    void *library = dlopen(path, RTLD_NOW);
    if (!driver || !library)
        return std::printf("%s\n", dlerror()), 1;
    reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"))(0);
    std::function<void *(ssize_t, int, void *)> allocate =
        reinterpret_cast<void *(*)(ssize_t, int, void *)>(dlsym(library, "allotment_torch_malloc"));
    int destroyed = 0, caught = 0;
    for (int round = 0; round < 3; round++) {
        try {
            Guard guard{&destroyed};
            allocate(ssize_t{1} << 36, 0, nullptr);
        } catch (const std::bad_alloc &) {
            caught++;
        }
    }
    void *block = allocate(1 << 20, 0, nullptr);
    return caught == 3 && destroyed == 3 && block ? 0 : 1;
}

int main(int, char **arguments) { return run(arguments[1], arguments[2]); }

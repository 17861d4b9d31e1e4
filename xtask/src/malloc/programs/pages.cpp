// What huge pages help, and what they do not: boxes that are built, boxes that are visited at random, random reads of one large block,
// and a large table that is filled once.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static uint64_t state = 88172645463325252ull;

static uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static std::vector<uint64_t *> boxes(size_t count) {
    std::vector<uint64_t *> boxes;
    for (size_t i = 0; i < count; i++) boxes.push_back(new uint64_t(i));
    return boxes;
}

int main(int, char **arguments) {
    std::string name = arguments[1];
    size_t by = strtoul(arguments[2], nullptr, 10);
    uint64_t sum = 0;
    if (name == "boxes") {
        sum = boxes(6000000 / by).size();
    } else if (name == "visits") {
        auto all = boxes(6000000 / by);
        for (size_t i = 0; i < 20000000 / by; i++) sum += *all[next() % all.size()];
    } else {
        size_t size = ((size_t)512 << 20) / by;
        auto block = static_cast<unsigned char *>(malloc(size));
        memset(block, 1, size);
        if (name == "reads")
            for (size_t i = 0; i < 40000000 / by; i++) sum += block[next() % size];
        else
            sum = block[next() % size];
        free(block);
    }
    printf("%llu\n", (unsigned long long)sum);
}

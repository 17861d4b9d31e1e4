// Maps and vectors of strings that come and go.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

int main(int, char **arguments) {
    int steps = 100000 / atoi(arguments[1]);
    unsigned x = 1;
    auto random = [&] { return (x = x * 1664525 + 1013904223) >> 8; };
    size_t total = 0;
    for (int round = 0; round < 4; round++) {
        std::map<std::string, std::vector<std::string>> lists;
        std::unordered_map<std::string, int> counts;
        for (int i = 0; i < steps; i++) {
            std::string key = "key" + std::to_string(random() % 20000);
            std::string value(random() % 90, 'x');
            value += std::to_string(i);
            lists[key].push_back(value);
            counts[value]++;
            if (i % 3 == 0) lists.erase("key" + std::to_string(random() % 20000));
        }
        for (auto &entry : lists)
            for (auto &value : entry.second) total += value.size();
        total += counts.size();
    }
    printf("%zu\n", total);
}

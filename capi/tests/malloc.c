// Programs for `liballotment.so`, chosen by the first argument. Each prints what it finds, and the test compares.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

// Takes blocks of `size` bytes until there are no more, at most `most`, and returns how many there were. Each holds the address of the one before.
static void *last;
static size_t drain(size_t size, size_t most) {
  size_t count = 0;
  for (void **block; count < most && (block = malloc(size)); count++) { *block = last; last = block; }
  return count;
}
static void drain_all(void) {
  for (size_t size = MIB; size >= 16; size -= size > 256 ? size / 16 : 16) drain(size, SIZE_MAX);
}
static void refill(void) {
  while (last) { void *block = last; last = *(void **)block; free(block); }
}

// Uses each class of small blocks, and frees everything again.
static void use_classes(void) {
  static void *blocks[4000];
  int count = 0;
  for (size_t size = 16; size <= 32768; size += size < 256 ? 16 : size / 16)
    for (int k = 0; k < 3; k++) blocks[count++] = malloc(size);
  while (count) free(blocks[--count]);
}

static void small_after(int used) {
  if (used) use_classes();
  printf("%zu\n", drain(100, SIZE_MAX) * 112 / 1024);
}

// A block grows over the empty pages behind it, or over what is not committed yet, when there is no place for another one.
static void grow_in_place(int used) {
  malloc(1);
  char *block = malloc(6 * MIB);
  memset(block, 7, 6 * MIB);
  if (used) use_classes();
  char *grown = realloc(block, used ? 10 * MIB : 11 * MIB);
  printf("%s\n", !grown ? "null" : grown[6 * MIB - 1] == 7 ? "grown" : "wrong");
  char *less = grown ? realloc(grown, 5 * MIB) : NULL;
  drain_all();
  less = less ? realloc(less, 100) : NULL;
  printf("%s\n", !less ? "null" : less[99] == 7 ? "shrunk" : "wrong");
}

// A thread that starts while there is no memory has lists as soon as there is some: what it frees stays with it.
// Reads each block after its free.
static void sampled(void) {
  for (int n = 0; n < 1000000; n++) {
    volatile char *volatile block = malloc(24);
    free((void *)block);
    (void)block[0];
  }
}

static pthread_barrier_t step;
static void *late(void *result) {
  pthread_barrier_wait(&step);
  void *volatile block = malloc(600);
  printf("%s\n", block ? "a block" : "null");
  pthread_barrier_wait(&step);
  pthread_barrier_wait(&step);
  size_t before = mallinfo2().uordblks;
  free(block = malloc(600));
  *(long *)result = (long)(mallinfo2().uordblks - before);
  return NULL;
}
static void start_without_memory(void) {
  pthread_t thread;
  long kept = 0;
  pthread_barrier_init(&step, NULL, 2);
  pthread_create(&thread, NULL, late, &kept);
  drain_all();
  pthread_barrier_wait(&step);
  pthread_barrier_wait(&step);
  refill();
  malloc_trim(0);
  pthread_barrier_wait(&step);
  pthread_join(thread, NULL);
  printf("%s\n", kept >= 600 ? "lists" : "no lists");
}

// A thread for whose end the system has no key has lists as soon as it has one.
static int keeps(void) {
  size_t before = mallinfo2().uordblks;
  for (int k = 0; k < 3; k++) { void *volatile block = malloc(600); free(block); }
  return mallinfo2().uordblks - before >= 600;
}
static void start_without_keys(void) {
  pthread_key_t key, last = 0;
  while (pthread_key_create(&key, NULL) == 0) last = key;
  printf("%s, ", keeps() ? "lists" : "no lists");
  pthread_key_delete(last);
  printf("%s\n", keeps() ? "lists" : "no lists");
}

static void limit_addresses(void) {
  free(malloc(1));
  struct rlimit limit = {256 * MIB, 256 * MIB};
  setrlimit(RLIMIT_AS, &limit);
  printf("%zu\n", drain(MIB, 1000));
}

// The page of another system: this function stands before that of the C library.
static long page;
extern long __sysconf(int);
long sysconf(int name) { return page && name == _SC_PAGESIZE ? page : __sysconf(name); }
static void large_pages(void) {
  page = 65536;
  for (int k = 0; k < 3; k++) {
    void *block = valloc(10), *whole = pvalloc(70000), *least = pvalloc(0);
    printf("%zu %zu %zu ", (uintptr_t)block % page, (uintptr_t)whole % page, (uintptr_t)least % page);
    printf("%d %d\n", malloc_usable_size(whole) >= 2 * 65536, malloc_usable_size(least) >= 65536);
  }
}

static void information(void) {
  malloc(3 * MIB);
  size_t committed = mallinfo2().arena;
  printf("%zu %zu %d\n", committed, mallinfo2().uordblks, malloc_info(1, stdout));
  fflush(stdout);
  printf("%d\n", malloc_info(0, stdout));
}

// Page faults of writing to 60 MiB of new blocks, without and with memory that was reserved for them.
static long faults(void) {
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  for (int k = 0; k < 60; k++) memset(malloc(MIB), 1, MIB);
  getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}
static void reserve(void) {
  int (*ask)(size_t) = (int (*)(size_t))dlsym(RTLD_DEFAULT, "allotment_reserve");
  long without = faults();
  int refused = ask((size_t)1 << 60), done = ask(64 * MIB);
  printf("%d %d %ld ", refused, done, without);
  printf("%ld\n", faults());
}

// KiB of huge pages behind a large block.
static void huge(void) {
  memset(malloc(64 * MIB), 1, 64 * MIB);
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  char line[200];
  long kibibytes = -1;
  while (file && fgets(line, sizeof line, file)) sscanf(line, "AnonHugePages: %ld", &kibibytes);
  printf("%ld\n", kibibytes);
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (!strcmp(what, "small")) small_after(0);
  else if (!strcmp(what, "small_after_others")) small_after(1);
  else if (!strcmp(what, "grow_in_place")) grow_in_place(0);
  else if (!strcmp(what, "grow_over_others")) grow_in_place(1);
  else if (!strcmp(what, "start_without_memory")) start_without_memory();
  else if (!strcmp(what, "start_without_keys")) start_without_keys();
  else if (!strcmp(what, "limit_addresses")) limit_addresses();
  else if (!strcmp(what, "large_pages")) large_pages();
  else if (!strcmp(what, "information")) information();
  else if (!strcmp(what, "sampled")) sampled();
  else if (!strcmp(what, "reserve")) reserve();
  else if (!strcmp(what, "huge")) huge();
  else if (!strcmp(what, "count")) printf("%zu %lu\n", drain(MIB, 400), getauxval(AT_SECURE));
  else return 2;
  return 0;
}

/* Executes the tables of a generated header in real memory: fills each tensor when it is made, checks it at each use. */
#define NET_PLAN_ARENAS
#include "net.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t tier(uint32_t place) { return NET_PLAN[place][0]; }
static uint64_t offset(uint32_t place) { return NET_PLAN[place][1]; }
static uint64_t size(uint32_t place) { return NET_PLAN[place][2]; }

static uint8_t memory[2][1 << 16];
static uint32_t holds[NET_BUFFERS + 1], next = 1;

static uint8_t pattern(uint32_t mark, uint64_t byte) { return (uint8_t)(mark * 101 + mark / 7 + byte * 13 + 1); }

static void fill(uint32_t place, uint32_t mark) {
  holds[place] = mark;
  for (uint64_t n = 0; n < size(place); n++) memory[tier(place)][offset(place) + n] = pattern(mark, n);
}

static void check(uint32_t step, uint32_t place) {
  for (uint64_t n = 0; n < size(place); n++)
    if (memory[tier(place)][offset(place) + n] != pattern(holds[place], n)) {
      printf("step %u: byte %u of place %u is wrong\n", step, (unsigned)n, place);
      exit(1);
    }
}

int main(void) {
  for (int run = 0; run < 3; run++)
    for (uint32_t n = 0; n < NET_STEP_COUNT; n++) {
      const uint32_t *reads = NET_OPERANDS + NET_STEPS[n].operands, *writes = reads + NET_STEPS[n].reads;
      for (uint32_t k = 0; k < NET_STEPS[n].reads; k++)
        if (reads[k] != NET_NO_PLACE) check(n, reads[k]);
      for (uint32_t k = 0; k < NET_STEPS[n].writes; k++) {
        uint32_t place = writes[k];
        if (place == NET_NO_PLACE) continue;
        if (NET_STEPS[n].what == NET_GIVEN && run > 0 && kept[place])
          check(n, place);
        else if (NET_STEPS[n].what == NET_COPY)
          fill(place, holds[reads[0]]);
        else if (NET_STEPS[n].lies == NET_VIEW && k == 0)
          holds[place] = holds[reads[0]];
        else
          fill(place, next++);
      }
      /* What is not overwritten on purpose is still there. */
      for (uint32_t k = 0; k < NET_STEPS[n].reads; k++) {
        int over = reads[k] == NET_NO_PLACE;
        for (uint32_t j = 0; j < NET_STEPS[n].writes; j++) over |= reads[k] == writes[j];
        if (!over && NET_STEPS[n].lies == NET_OVER)
          over = offset(reads[k]) == offset(writes[0]) && tier(reads[k]) == tier(writes[0]);
        if (!over) check(n, reads[k]);
      }
    }
  return 0;
}

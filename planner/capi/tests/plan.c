/* What a compiler written in C does with the planner. Prints what the test beside it looks at. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allotment_planner.h"

/* Reads `id,lower,upper,size` lines, with or without `,alignment`. */
static size_t read_csv(const char *path, AllotmentBuffer **buffers) {
  FILE *file = fopen(path, "r");
  size_t count = 0, room = 0;
  char line[512];
  if (!file || !fgets(line, sizeof line, file)) {
    fprintf(stderr, "%s cannot be read\n", path);
    exit(2);
  }
  while (fgets(line, sizeof line, file)) {
    int64_t lower, upper;
    uint64_t size, align = 1;
    if (sscanf(line, "%*[^,],%" SCNd64 ",%" SCNd64 ",%" SCNu64 ",%" SCNu64, &lower, &upper, &size, &align) < 3) continue;
    if (count == room) {
      room = room ? 2 * room : 64;
      *buffers = realloc(*buffers, room * sizeof **buffers);
      if (!*buffers) exit(2);
    }
    (*buffers)[count] = allotment_buffer(size, lower, upper);
    (*buffers)[count++].align = align;
  }
  fclose(file);
  return count;
}

/* Counts the calls, and checks that peaks fall and bounds rise. */
struct watched {
  unsigned calls;
  uint64_t peak, bound;
  bool wrong;
};

static bool watch(void *user, const AllotmentProgress *progress) {
  struct watched *seen = user;
  if (seen->calls && (progress->peak > seen->peak || progress->lower_bound < seen->bound)) seen->wrong = true;
  seen->calls++;
  seen->peak = progress->peak;
  seen->bound = progress->lower_bound;
  return true;
}

static bool enough(void *user, const AllotmentProgress *progress) {
  (void)progress;
  ++*(unsigned *)user;
  return false;
}

static void show(const char *what, AllotmentOutcome outcome, const AllotmentPlan *plan) {
  printf("%s outcome=%d status=%d peak=%" PRIu64 " bound=%" PRIu64 " message=%s\n", what, (int)outcome,
         (int)plan->status, plan->peak, plan->lower_bound, plan->message);
}

/* plan.c CSV [CAPACITY [SEED]]: the offsets of a file, one a line. */
static int plan_file(int count, char **arguments) {
  AllotmentBuffer *buffers = NULL;
  size_t n = read_csv(arguments[1], &buffers);
  uint64_t *offsets = malloc(n * sizeof *offsets);
  AllotmentOptions options = allotment_options();
  AllotmentPlan plan;
  struct watched seen = {0, 0, 0, false};
  if (!offsets) return 2;
  if (count > 2) options.capacity = strtoull(arguments[2], NULL, 10);
  if (count > 3) options.seed = strtoull(arguments[3], NULL, 10);
  options.progress = watch;
  options.user = &seen;
  AllotmentOutcome outcome = allotment_plan(buffers, n, &options, offsets, &plan);
  show("file", outcome, &plan);
  printf("watched wrong=%d told=%d last=%d\n", seen.wrong, seen.calls > 0, seen.peak == plan.peak);
  char message[80];
  printf("checked outcome=%d\n",
         (int)allotment_validate(buffers, n, offsets, plan.peak, message, sizeof message));
  printf("tight outcome=%d message=%s\n",
         (int)allotment_validate(buffers, n, offsets, plan.peak - 1, message, sizeof message), message);
  for (size_t k = 0; k < n; k++) printf("offset %" PRIu64 "\n", offsets[k]);
  free(offsets);
  free(buffers);
  return outcome;
}

int main(int count, char **arguments) {
  if (count > 1) return plan_file(count, arguments);

  AllotmentPlan plan;
  uint64_t offsets[3] = {77, 77, 77};
  /* Everything a buffer can have. */
  AllotmentGap gap = {2, 4, 0, 0};
  AllotmentBuffer rich[3] = {allotment_buffer(8, 0, 6), allotment_buffer(8, 2, 4), allotment_buffer(4, 0, 6)};
  rich[0].gaps = &gap;
  rich[0].gap_count = 1;
  rich[2].tier = 1;
  rich[2].fixed = 64;
  rich[2].align = 32;
  show("rich", allotment_plan(rich, 3, NULL, offsets, &plan), &plan);
  printf("rich %d %d\n", offsets[0] == offsets[1], (int)offsets[2]);

  /* Wrong input is said, and leaves the offsets alone. */
  AllotmentBuffer wrong = allotment_buffer(8, 5, 2);
  offsets[0] = 77;
  show("lifetime", allotment_plan(&wrong, 1, NULL, offsets, &plan), &plan);
  show("null", allotment_plan(NULL, 1, NULL, offsets, &plan), &plan);
  wrong = allotment_buffer(8, 0, 2);
  show("no offsets", allotment_plan(&wrong, 1, NULL, NULL, &plan), &plan);
  wrong.alias = 7;
  show("alias", allotment_plan(&wrong, 1, NULL, offsets, &plan), &plan);
  AllotmentOptions options = allotment_options();
  options.threads = 0;
  wrong.alias = ALLOTMENT_NONE;
  show("threads", allotment_plan(&wrong, 1, &options, offsets, &plan), &plan);
  options.threads = 1;
  options.time_limit = -1.0;
  show("time", allotment_plan(&wrong, 1, &options, offsets, &plan), &plan);
  printf("untouched %d, no plan %d\n", (int)offsets[0],
         (int)allotment_plan(&wrong, 1, NULL, offsets, NULL));
  AllotmentBuffer fixed[2] = {allotment_buffer(8, 0, 4), allotment_buffer(8, 0, 4)};
  fixed[0].fixed = 0;
  fixed[1].fixed = 4;
  show("fixed", allotment_plan(fixed, 2, NULL, offsets, &plan), &plan);
  show("nothing", allotment_plan(NULL, 0, NULL, NULL, &plan), &plan);

  /* A hard instance ends early by cancel, by the progress function, and by the clock. */
  enum { MANY = 600 };
  static AllotmentBuffer hard[MANY];
  static uint64_t places[MANY];
  uint64_t state = 1;
  for (int k = 0; k < MANY; k++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    int64_t start = (int64_t)(state >> 33) % 1000;
    hard[k] = allotment_buffer(1 + (state >> 40) % 4096, start, start + 1 + (int64_t)(state >> 50) % 90);
  }
  options = allotment_options();
  options.time_limit = 3600.0;
  AllotmentCancel *cancel = allotment_cancel_new();
  allotment_cancel_raise(cancel);
  options.cancel = cancel;
  AllotmentOutcome outcome = allotment_plan(hard, MANY, &options, places, &plan);
  printf("cancelled outcome=%d gap=%d\n", (int)outcome, plan.peak > plan.lower_bound);
  printf("cancelled plan is one %d\n",
         (int)allotment_validate(hard, MANY, places, plan.peak, NULL, 0));
  allotment_cancel_free(cancel);
  options.cancel = NULL;
  unsigned calls = 0;
  options.progress = enough;
  options.user = &calls;
  outcome = allotment_plan(hard, MANY, &options, places, &plan);
  printf("stopped outcome=%d told=%d\n", (int)outcome, calls > 0);
  options.progress = NULL;
  options.time_limit = 0.0;
  outcome = allotment_plan(hard, MANY, &options, places, &plan);
  printf("late outcome=%d plan is one %d\n", (int)outcome,
         (int)allotment_validate(hard, MANY, places, plan.peak, NULL, 0));

  /* A plan that exceeds the capacity is written only if that is asked for. */
  AllotmentBuffer two[2] = {allotment_buffer(8, 0, 4), allotment_buffer(8, 0, 4)};
  options = allotment_options();
  options.capacity = 15;
  offsets[0] = 77;
  show("tight", allotment_plan(two, 2, &options, offsets, &plan), &plan);
  printf("untouched %d, ", (int)offsets[0]);
  options.anyway = true;
  printf("anyway %d\n", (int)allotment_plan(two, 2, &options, offsets, &plan));

  /* A limit of work: the same plan each time. A program that knows fewer options than the library. */
  static uint64_t again[MANY];
  allotment_options_init(&options, sizeof options);
  options.work = 60;
  options.time_limit = 3600.0;
  allotment_plan(hard, MANY, &options, places, &plan);
  allotment_plan(hard, MANY, &options, again, &plan);
  printf("work %d\n", memcmp(places, again, sizeof again) == 0);
  options = allotment_options();
  options.struct_size = offsetof(AllotmentOptions, work);
  options.work = 1;
  options.anyway = true;
  printf("older %d\n", (int)allotment_plan(two, 2, &options, offsets, &plan));

  /* A model: its steps, and a place for each tensor. */
  static const char graph[] =
      "{\"tensors\": [{\"name\": \"x\", \"bytes\": 16, \"kind\": \"input\"}, {\"name\": \"a\", \"bytes\": 1600},"
      "{\"name\": \"b\", \"bytes\": 160}, {\"name\": \"c\", \"bytes\": 1600}, {\"name\": \"y\", \"bytes\": 160, \"kind\": \"output\"}],"
      "\"ops\": [{\"name\": \"f\", \"inputs\": [\"x\"], \"outputs\": [\"a\"]}, {\"name\": \"g\", \"inputs\": [\"x\"], \"outputs\": [\"c\"]},"
      "{\"name\": \"h\", \"inputs\": [\"c\"], \"outputs\": [\"b\"]}, {\"name\": \"i\", \"inputs\": [\"a\", \"b\"], \"outputs\": [\"y\"]}]}";
  AllotmentModel model = allotment_model((const uint8_t *)graph, sizeof graph - 1, ALLOTMENT_FORM_JSON);
  model.inputs = true;
  model.spill = 2000;
  AllotmentSchedule *schedule;
  show("schedule", allotment_schedule(&model, NULL, &schedule, &plan), &plan);
  const AllotmentScheduleView *view = allotment_schedule_view(schedule);
  printf("version %d, %s: %d places\n", view->version == ALLOTMENT_PLANNER_VERSION, view->proved, (int)view->place_count);
  for (size_t n = 0; n < view->step_count; n++) {
    const AllotmentStep *step = (const void *)((const char *)view->steps + n * view->step_size);
    static const char *const acts[] = {"given", "run", "copy", "load", "taken"};
    printf("%d %s%s%s", (int)step->time, acts[step->act], *step->operator_name ? " " : "", step->operator_name);
    for (size_t k = 0; k < step->read_count + step->write_count; k++) {
      uint64_t number = k < step->read_count ? step->reads[k] : step->writes[k - step->read_count];
      const AllotmentPlace *place = (const void *)((const char *)view->places + number * view->place_size);
      printf("%s%s", k == step->read_count ? " -> " : " ", place->name);
    }
    printf("\n");
  }
  allotment_schedule_free(schedule);
  model.in_place = true;
  show("together", allotment_schedule(&model, NULL, &schedule, &plan), &plan);
  model.form = 9;
  show("form", allotment_schedule(&model, NULL, &schedule, &plan), &plan);
  printf("null %d\n", schedule == NULL);
  return 0;
}

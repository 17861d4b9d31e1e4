/* The planner of `allotment`. Made by cbindgen from planner/capi/src/lib.rs: change that. */

#ifndef ALLOTMENT_PLANNER_H
#define ALLOTMENT_PLANNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Stands for "none" in every 64-bit field that may be left open: no capacity, no fixed offset, no hint, no partner.
#define ALLOTMENT_NONE UINT64_MAX

// Whether a call did its work.
typedef enum AllotmentOutcome {
  // A plan was made; its status says what is proved about it.
  ALLOTMENT_OUTCOME_OK = 0,
  // A pointer is null that must not be, or a number is out of its range.
  ALLOTMENT_OUTCOME_ARGUMENT = 1,
  // The buffers contradict themselves, such as a lifetime that ends before it starts.
  ALLOTMENT_OUTCOME_INSTANCE = 2,
  // The offsets are no plan: two buffers overlap, or one is misaligned or above the capacity.
  ALLOTMENT_OUTCOME_VIOLATION = 3,
  // A defect of the planner; please report it.
  ALLOTMENT_OUTCOME_DEFECT = 4,
} AllotmentOutcome;

// What is proved about a plan.
typedef enum AllotmentStatus {
  // No plan is smaller: proved.
  ALLOTMENT_STATUS_OPTIMAL = 0,
  // The plan fits the capacity.
  ALLOTMENT_STATUS_FITS = 1,
  // The best plan found; `lower_bound` says how far from the optimum it can be.
  ALLOTMENT_STATUS_GAP = 2,
  // No plan fits the capacity: proved. The plan is the best found.
  ALLOTMENT_STATUS_INFEASIBLE = 3,
  // No plan was found that fits, and none was proved impossible. The plan is the best found.
  ALLOTMENT_STATUS_INCONCLUSIVE = 4,
} AllotmentStatus;

// A flag that ends a search from another thread, or from a signal handler.
typedef struct AllotmentCancel AllotmentCancel;

// A part of a buffer's lifetime in which it needs only some of its bytes, or none.
typedef struct AllotmentGap {
  // First time step of the gap.
  int64_t lower;
  // The time step after its last.
  int64_t upper;
  // First byte of the buffer that stays in use meanwhile.
  uint64_t window_lower;
  // The byte after the last one that stays in use; equal to `window_lower` if none does.
  uint64_t window_upper;
} AllotmentGap;

// A buffer to be placed. Start from `allotment_buffer`, which leaves everything open that can be.
typedef struct AllotmentBuffer {
  // Bytes.
  uint64_t size;
  // First time step at which the buffer is live.
  int64_t lower;
  // The time step after the last one at which it is live.
  int64_t upper;
  // The offset is a multiple of this many bytes; at least 1.
  uint64_t align;
  // The offset that it must have, or `ALLOTMENT_NONE`.
  uint64_t fixed;
  // An offset that it should have if that costs nothing, or `ALLOTMENT_NONE`.
  uint64_t hint;
  // The number of another buffer with which it may share one offset, or `ALLOTMENT_NONE`.
  uint64_t alias;
  // The memory it belongs to; buffers of different tiers never meet, and every tier's offsets start at 0.
  uint32_t tier;
  // Its gaps, ascending and disjoint; may be null if there are none.
  const struct AllotmentGap *gaps;
  // Number of gaps.
  size_t gap_count;
} AllotmentBuffer;

// What is known about the plan while the search runs.
typedef struct AllotmentProgress {
  // Seconds since the start.
  double seconds;
  // Best peak so far, in bytes.
  uint64_t peak;
  // Best lower bound so far, in bytes.
  uint64_t lower_bound;
} AllotmentProgress;

// Receives every better plan and bound; the search ends early when it returns false.
//
// Calls come from the planner's own threads, but never two at once, and none after `allotment_plan` has returned.
typedef bool (*AllotmentProgressFunction)(void *user, const struct AllotmentProgress *progress);

// How to search. Start from `allotment_options`, which sets the defaults.
typedef struct AllotmentOptions {
  // The capacity of tier 0 in bytes, or `ALLOTMENT_NONE` for a plan as small as possible.
  uint64_t capacity;
  // The capacities of tiers 1, 2 and so on, each as `capacity`; may be null if there are none.
  const uint64_t *more_capacities;
  // Number of entries in `more_capacities`.
  size_t more_capacity_count;
  // Seconds after which the search ends with the best plan so far.
  double time_limit;
  // Number of threads; at least 1. One thread makes the same plan in every run that ends before the time limit.
  uint32_t threads;
  // The seed of all that is left to chance.
  uint64_t seed;
  // Receives the progress; may be null.
  AllotmentProgressFunction progress;
  // Passed on to `progress`.
  void *user;
  // Ends the search when raised; may be null.
  const struct AllotmentCancel *cancel;
} AllotmentOptions;

// The figures of a plan; of several tiers the largest peak and bound, and the worst status.
typedef struct AllotmentPlan {
  // The highest end of a buffer, in bytes.
  uint64_t peak;
  // The proved lower bound of the peak of every plan, in bytes.
  uint64_t lower_bound;
  // What is proved.
  enum AllotmentStatus status;
  // Nodes of the exact search.
  uint64_t nodes;
  // Seconds that the search took.
  double seconds;
  // What is wrong, if the outcome is not `OK`: UTF-8, cut to fit, always ended by a zero byte.
  char message[256];
} AllotmentPlan;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns a buffer of `size` bytes, live from `lower` until before `upper`, with everything else left open.
struct AllotmentBuffer allotment_buffer(uint64_t size,
                                        int64_t lower,
                                        int64_t upper);

// Returns the default options: no capacity, 60 seconds, one thread, seed 0.
struct AllotmentOptions allotment_options(void);

// Creates a cancel flag; `allotment_cancel_free` frees it.
struct AllotmentCancel *allotment_cancel_new(void);

// Raises a cancel flag: searches that were given it end with their best plan so far. Does nothing with null. May be called from a
// signal handler.
//
// # Safety
// `cancel` is null or from `allotment_cancel_new`, and not freed.
void allotment_cancel_raise(const struct AllotmentCancel *cancel);

// Frees a cancel flag. Does nothing with null.
//
// # Safety
// `cancel` is null or from `allotment_cancel_new`, not freed before, and no call that was given it is still running.
void allotment_cancel_free(struct AllotmentCancel *cancel);

// Plans `count` buffers: writes one offset for each into `offsets`, and the figures into `plan`.
//
// `options` may be null for the defaults. Where the outcome is not `OK`, the offsets are untouched and `plan->message` says what
// is wrong.
//
// # Safety
// `buffers` points to `count` buffers, each with `gap_count` gaps; `offsets` has room for `count` numbers, and `plan` for one plan;
// both pointers of arrays may be null if `count` is 0. The pointers of `options` are valid as its fields say.
enum AllotmentOutcome allotment_plan(const struct AllotmentBuffer *buffers,
                                     size_t count,
                                     const struct AllotmentOptions *options,
                                     uint64_t *offsets,
                                     struct AllotmentPlan *plan);

// Checks that `offsets` are a plan of the buffers, within `capacity` bytes or `ALLOTMENT_NONE`.
//
// If they are not, up to `room` bytes of `message` (which may be null) say why, ended by a zero byte.
//
// # Safety
// `buffers` and `offsets` point to `count` entries each (either may be null if `count` is 0), and `message` to `room` bytes, or it
// is null.
enum AllotmentOutcome allotment_validate(const struct AllotmentBuffer *buffers,
                                         size_t count,
                                         const uint64_t *offsets,
                                         uint64_t capacity,
                                         char *message,
                                         size_t room);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ALLOTMENT_PLANNER_H */

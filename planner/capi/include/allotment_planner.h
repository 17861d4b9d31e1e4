/* The planner of `allotment`. Made by cbindgen from planner/capi/src/lib.rs: change that. */

#ifndef ALLOTMENT_PLANNER_H
#define ALLOTMENT_PLANNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Stands for "none" in every 64-bit field that may be left open: no capacity, no fixed offset, no hint, no partner.
#define ALLOTMENT_NONE UINT64_MAX

// The version of the interface that a program is compiled with; the library's is `allotment_planner_version`.
#define ALLOTMENT_PLANNER_VERSION 2

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
  // The best plan exceeds the capacity, and `anyway` is false. The status says whether a smaller one is impossible.
  ALLOTMENT_OUTCOME_CAPACITY = 5,
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

// What a step does.
typedef enum AllotmentAct {
  // The caller provides what it writes: inputs before every run, constants and states before the first.
  ALLOTMENT_ACT_GIVEN = 0,
  // An operator runs.
  ALLOTMENT_ACT_RUN = 1,
  // The place that is read is copied to the one that is written.
  ALLOTMENT_ACT_COPY = 2,
  // A constant is read again from the model.
  ALLOTMENT_ACT_LOAD = 3,
  // The caller may read the outputs.
  ALLOTMENT_ACT_TAKEN = 4,
} AllotmentAct;

// How the first place that a step writes lies.
typedef enum AllotmentLies {
  // Apart from what is read.
  ALLOTMENT_LIES_APART = 0,
  // It is the first place that is read, seen otherwise: it is not computed.
  ALLOTMENT_LIES_VIEW = 1,
  // It overwrites what is read from its bytes.
  ALLOTMENT_LIES_OVER = 2,
} AllotmentLies;

// The form of a model.
typedef enum AllotmentForm {
  // A graph of operators and tensors as JSON.
  ALLOTMENT_FORM_JSON = 0,
  // An ONNX model.
  ALLOTMENT_FORM_ONNX = 1,
  // A TFLite model.
  ALLOTMENT_FORM_TFLITE = 2,
} AllotmentForm;

// A flag that ends a search from another thread, or from a signal handler.
typedef struct AllotmentCancel AllotmentCancel;

// What a program does to run a model, and a place for every tensor.
typedef struct AllotmentSchedule AllotmentSchedule;

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
  // Bytes of this structure where it is used. New fields are added at its end, and have their defaults for a program that does not know
  // them.
  size_t struct_size;
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
  // Units of work, of about a millisecond, after which the search ends; 0 for no limit. With one thread the same plan on every machine.
  uint64_t work;
  // Write the offsets even if the best plan exceeds the capacity.
  bool anyway;
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

// A model, and what is done to it. Start from `allotment_model`, which sets the defaults.
typedef struct AllotmentModel {
  // Bytes of this structure where it is used. New fields are added at its end.
  size_t struct_size;
  // The model's bytes.
  const uint8_t *bytes;
  // Their number.
  size_t length;
  // Their form: a number of `AllotmentForm`.
  uint32_t form;
  // Names of the open dimensions of an ONNX model; may be null if there are none.
  const char *const *dim_names;
  // The size of each.
  const uint64_t *dim_sizes;
  // Number of dimensions.
  size_t dim_count;
  // Alignment of every buffer in bytes, to which sizes are rounded up.
  uint64_t align;
  // Plan the weights too.
  bool weights;
  // Plan the inputs too.
  bool inputs;
  // Let views share their tensor's memory, and let operators overwrite inputs that are not read again.
  bool in_place;
  // Run the operators in the order that needs the least memory.
  bool reorder;
  // Run cheap operators again instead of keeping their results, for up to this many elements more; 0 for none.
  uint64_t rematerialise;
  // Pass tensors between operators that go element by element in this many chunks; 0 or 1 for all at once.
  uint64_t stream;
  // Move tensors to a slower memory (tier 1) while they are not read, so that no more bytes than these are in use; or `ALLOTMENT_NONE`.
  uint64_t spill;
  // With `spill`: choose the order, what runs again and what is moved in one search, in which a unit of work counts as so many bytes; or
  // `ALLOTMENT_NONE`.
  uint64_t joint;
} AllotmentModel;

// Where a tensor lies, and when.
typedef struct AllotmentPlace {
  // The tensor's name; where one lies at several places in turn, a name made from it.
  const char *name;
  // First byte in its memory.
  uint64_t offset;
  // Bytes.
  uint64_t size;
  // First time at which it is live.
  int64_t lower;
  // The time after the last one at which it is live.
  int64_t upper;
  // The memory.
  uint32_t tier;
  // The number of the place whose bytes it lies in, or its own.
  uint64_t within;
} AllotmentPlace;

// One thing that a program does.
typedef struct AllotmentStep {
  // The time that lifetimes count.
  int64_t time;
  // What is done.
  enum AllotmentAct act;
  // How the first place that is written lies.
  enum AllotmentLies lies;
  // The operator's name, or an empty text.
  const char *operator_name;
  // Which chunk the operator makes.
  uint64_t chunk;
  // Number of chunks; 1 for an operator that makes all at once.
  uint64_t chunks;
  // The numbers of the places that are read; `ALLOTMENT_NONE` for a tensor that the plan has none for.
  const uint64_t *reads;
  // How many.
  size_t read_count;
  // The numbers of the places that are written, in the same way.
  const uint64_t *writes;
  // How many.
  size_t write_count;
} AllotmentStep;

// What a schedule holds; valid until the schedule is freed. A step or place begins `step_size` or `place_size` bytes after the one before
// it, which may be more than a program knows of.
typedef struct AllotmentScheduleView {
  // The version of the library that made it.
  uint32_t version;
  // Bytes of a place.
  size_t place_size;
  // Number of places.
  size_t place_count;
  // The places.
  const struct AllotmentPlace *places;
  // Bytes of a step.
  size_t step_size;
  // Number of steps.
  size_t step_count;
  // The steps in order.
  const struct AllotmentStep *steps;
  // What is proved about the plan, and of what: of one order of the operators, or of all.
  const char *proved;
} AllotmentScheduleView;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns a buffer of `size` bytes, live from `lower` until before `upper`, with everything else left open.
struct AllotmentBuffer allotment_buffer(uint64_t size,
                                        int64_t lower,
                                        int64_t upper);

// Returns the default options: no capacity, 60 seconds, one thread, seed 0. A program that may be linked with a later version calls
// `allotment_options_init` instead, which writes no field that the program does not know.
struct AllotmentOptions allotment_options(void);

// Writes the default options into a structure of `size` bytes, which is `sizeof(AllotmentOptions)` where it is compiled.
//
// # Safety
// `options` points to `size` bytes.
void allotment_options_init(struct AllotmentOptions *options,
                            size_t size);

// Returns the version of the interface: it grows when fields are added. What a program is compiled with is `ALLOTMENT_PLANNER_VERSION`.
uint32_t allotment_planner_version(void);

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
// is wrong; that of a plan which exceeds the capacity is `CAPACITY`, and the figures are those of the best one.
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

// Returns a model of `length` bytes that nothing is done to, with 16 bytes for alignment. `form` is a number of `AllotmentForm`.
struct AllotmentModel allotment_model(const uint8_t *bytes,
                                      size_t length,
                                      uint32_t form);

// Plans a model: writes a schedule, which `allotment_schedule_free` frees, and the figures of its plan.
//
// `options` may be null for the defaults. Where the outcome is not `OK`, `*schedule` is null and `plan->message` says what is wrong. The
// schedule has been executed once, with every tensor checked at each use.
//
// # Safety
// `model` and its pointers are valid as its fields say, and so are `options`; `schedule` and `plan` can be written to.
enum AllotmentOutcome allotment_schedule(const struct AllotmentModel *model,
                                         const struct AllotmentOptions *options,
                                         struct AllotmentSchedule **schedule,
                                         struct AllotmentPlan *plan);

// Returns what a schedule holds; null for null.
//
// # Safety
// `schedule` is null or from `allotment_schedule`, and not freed.
const struct AllotmentScheduleView *allotment_schedule_view(const struct AllotmentSchedule *schedule);

// Frees a schedule. Does nothing with null.
//
// # Safety
// `schedule` is null or from `allotment_schedule`, and not freed before.
void allotment_schedule_free(struct AllotmentSchedule *schedule);

// Returns a model of `length` bytes that nothing is done to, with 16 bytes for alignment. `form` is a number of `AllotmentForm`.
struct AllotmentModel allotment_model(const uint8_t *bytes,
                                      size_t length,
                                      uint32_t form);

// Plans a model: writes a schedule, which `allotment_schedule_free` frees, and the figures of its plan.
//
// `options` may be null for the defaults. Where the outcome is not `OK`, `*schedule` is null and `plan->message` says what is wrong. The
// schedule has been executed once, with every tensor checked at each use.
//
// # Safety
// `model` and its pointers are valid as its fields say, and so are `options`; `schedule` and `plan` can be written to.
enum AllotmentOutcome allotment_schedule(const struct AllotmentModel *model,
                                         const struct AllotmentOptions *options,
                                         struct AllotmentSchedule **schedule,
                                         struct AllotmentPlan *plan);

// Returns what a schedule holds; null for null.
//
// # Safety
// `schedule` is null or from `allotment_schedule`, and not freed.
const struct AllotmentScheduleView *allotment_schedule_view(const struct AllotmentSchedule *schedule);

// Frees a schedule. Does nothing with null.
//
// # Safety
// `schedule` is null or from `allotment_schedule`, and not freed before.
void allotment_schedule_free(struct AllotmentSchedule *schedule);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ALLOTMENT_PLANNER_H */

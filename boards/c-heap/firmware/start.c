/* Start-up of a Cortex-M3 without any library, and output by semihosting. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern uint32_t stack_top, data_start, data_end, data_image, bss_start, bss_end;

int main(void);
void say(const char *text);
void say_number(const char *name, size_t number);
_Noreturn void finish(bool ok);
void reset(void);
void fault(void);

static void semihosting(uint32_t operation, uintptr_t argument) {
  register uint32_t r0 __asm__("r0") = operation;
  register uintptr_t r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

void say(const char *text) { semihosting(4, (uintptr_t)text); }

void say_number(const char *name, size_t number) {
  char text[12];
  char *at = text + sizeof text - 1;
  *at = 0;
  do {
    *--at = (char)('0' + number % 10);
    number /= 10;
  } while (number);
  say(name);
  say(" ");
  say(at);
  say("\n");
}

/* 0x20026 is the end of an application; everything else is a failure. */
_Noreturn void finish(bool ok) {
  for (;;) semihosting(0x18, ok ? 0x20026 : 0x20023);
}

void fault(void) {
  say("failed: a fault\n");
  finish(false);
}

void reset(void) {
  for (uint32_t *from = &data_image, *to = &data_start; to < &data_end;) *to++ = *from++;
  for (uint32_t *at = &bss_start; at < &bss_end;) *at++ = 0;
  main();
  finish(false);
}

__attribute__((section(".vectors"), used)) static const uintptr_t vectors[16] = {
    (uintptr_t)&stack_top, (uintptr_t)reset, (uintptr_t)fault, (uintptr_t)fault, (uintptr_t)fault,
    (uintptr_t)fault,      (uintptr_t)fault, 0,                0,                0,
    0,                     (uintptr_t)fault, (uintptr_t)fault, 0,                (uintptr_t)fault,
    (uintptr_t)fault,
};

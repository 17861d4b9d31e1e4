//! A running process that is stopped for a moment, so that it calls a function for us.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace;
use nix::unistd::Pid;

/// The time within which a thread must come to a safe place, and a call must return.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The most instructions that a thread runs to come to a safe place, and the time for one: a system call may wait.
const STEPS: usize = 20_000;
const STEP: Duration = Duration::from_millis(20);

/// The kernel's numbers for interrupted system calls (`ERESTARTSYS` and its kin), and for one that it ended early.
const INTERRUPTED: [i64; 5] = [-512, -513, -514, -516, -(libc::EINTR as i64)];

/// The set of registers that `XSAVE` stores.
const NT_X86_XSTATE: usize = 0x202;

/// Bytes of the stack that a call gets: the thread's own may be that of a coroutine.
const STACK: u64 = 256 << 10;

/// The signals that stay blocked in a call, so that no handler of the program's runs on top of it: all but those of faults.
const BLOCKED: u64 = {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
    let (mut blocked, mut n) = (u64::MAX, 0);
    while n < faults.len() {
        blocked &= !(1 << (faults[n] - 1));
        n += 1;
    }
    blocked
};

/// The flags of single steps and of string instructions that go down.
const FLAGS: u64 = 0x500;

/// A stopped thread of a process. It goes on where it was when this is dropped.
pub struct Tracee {
    thread: Pid,
    memory: File,
    registers: user_regs_struct,
    /// The floating-point and vector registers.
    vectors: Vec<u8>,
    /// A signal that it has not seen yet, or 0.
    signal: i32,
    /// The address of an instruction for a system call, and of a stack; 0 before there is one.
    gate: u64,
    stack: u64,
}

/// Stops a thread of the process where it holds none of the C library's locks: `is_locking` is asked about an address, and whether
/// the thread waits in a system call there. The other threads go on.
///
/// # Errors
/// `EPERM` if the system does not allow it, and if no thread comes to such a place.
pub fn stop(process: u32, is_locking: impl Fn(u64, bool) -> bool) -> io::Result<Tracee> {
    let place = format!("/proc/{process}");
    let until = Instant::now() + PATIENCE;
    loop {
        for entry in fs::read_dir(format!("{place}/task"))? {
            let name = entry?.file_name();
            let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            // One that waits for a disk, or for its child by `vfork`, does not stop.
            if state_of(&format!("{place}/task/{thread}")).is_none_or(|state| state == 'D') {
                continue;
            }
            match Tracee::new(Pid::from_raw(thread), &place) {
                // Dropping it lets the thread go on. One that has ended is not there any more.
                Ok(mut tracee) if tracee.can_fault() => match tracee.run_to_safety(&is_locking) {
                    Ok(true) => return Ok(tracee),
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                    _ => {}
                },
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        if Instant::now() > until {
            return Err(io::Error::other("all its threads are busy in the C library: try again"));
        }
        thread::sleep(Duration::from_millis(3));
    }
}

/// Returns the letter of a thread's state; `None` if it has ended.
fn state_of(place: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("{place}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next().filter(|state| !['Z', 'X'].contains(state))
}

/// What a thread did. Signals are numbers, because those of real time have no names.
enum Stopped {
    /// It got a signal, which it has not seen yet.
    Signal(i32),
    /// It was asked to stop, or all of the process was.
    Asked,
    Ended,
}

/// Waits until the thread stops; `None` if it has not and `options` say not to wait.
fn wait_for(thread: Pid, options: i32) -> io::Result<Option<Stopped>> {
    let mut status = 0;
    // SAFETY: the place is that of a local variable.
    let found =
        Errno::result(unsafe { libc::waitpid(thread.as_raw(), &raw mut status, libc::__WALL | options) })?;
    Ok(match found {
        0 => None,
        _ if !libc::WIFSTOPPED(status) => Some(Stopped::Ended),
        _ if status >> 16 != 0 => Some(Stopped::Asked),
        _ => Some(Stopped::Signal(libc::WSTOPSIG(status))),
    })
}

/// Lets the thread go on, with a signal unless that is 0.
fn go_on(request: libc::c_uint, thread: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: these requests use no address, and the number of the signal.
    let result = unsafe { libc::ptrace(request, thread.as_raw(), 0_usize, signal as usize) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

impl Tracee {
    fn new(thread: Pid, place: &str) -> io::Result<Self> {
        ptrace::seize(thread, ptrace::Options::empty())?;
        let stopped = ptrace::interrupt(thread).map_err(io::Error::from).and_then(|()| wait_for(thread, 0));
        let read = || {
            Ok(Self {
                thread,
                memory: File::options().read(true).write(true).open(format!("{place}/mem"))?,
                registers: ptrace::getregs(thread)?,
                vectors: Vec::new(),
                signal: 0,
                gate: 0,
                stack: 0,
            })
        };
        let (result, signal) = match stopped {
            Ok(Some(Stopped::Asked)) => (read(), 0),
            // It stopped first for a signal, which it still gets.
            Ok(Some(Stopped::Signal(signal))) => (Err(Errno::ESRCH.into()), signal),
            Ok(_) => (Err(Errno::ESRCH.into()), 0),
            Err(error) => (Err(error), 0),
        };
        if result.is_err() {
            // It may have ended.
            let _ = go_on(libc::PTRACE_DETACH, thread, signal);
        }
        result
    }

    /// A call ends with a fault, for which the kernel would reset a signal that is ignored.
    fn can_fault(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.thread)).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
        let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_some_and(|mask| mask >> (libc::SIGSEGV - 1) & 1 == 0)
    }

    /// Runs the thread, an instruction at a time, until it holds no lock; false if that takes too many.
    fn run_to_safety(&mut self, is_locking: impl Fn(u64, bool) -> bool) -> io::Result<bool> {
        for _ in 0..STEPS {
            self.registers = ptrace::getregs(self.thread)?;
            let in_call = self.registers.orig_rax.cast_signed() >= 0;
            let was_interrupted = INTERRUPTED.contains(&self.registers.rax.cast_signed());
            let is_locking = is_locking(self.registers.rip, in_call);
            if in_call && is_locking {
                return Ok(false);
            }
            if self.signal == 0 && !is_locking && (!in_call || was_interrupted) {
                self.vectors = vectors(self.thread)?;
                return Ok(true);
            }
            go_on(libc::PTRACE_SINGLESTEP, self.thread, std::mem::take(&mut self.signal))?;
            self.signal = match self.wait(STEP)? {
                Stopped::Signal(libc::SIGTRAP) | Stopped::Asked => 0,
                Stopped::Signal(other) => other,
                Stopped::Ended => return Err(Errno::ESRCH.into()),
            };
        }
        Ok(false)
    }

    /// Waits until the thread stops, and stops it after this time.
    fn wait(&self, longest: Duration) -> io::Result<Stopped> {
        let until = Instant::now() + longest;
        let mut asked = false;
        loop {
            match wait_for(self.thread, libc::WNOHANG)? {
                None if !asked && Instant::now() > until => {
                    asked = true;
                    ptrace::interrupt(self.thread)?;
                }
                None => thread::yield_now(),
                Some(stopped) => return Ok(stopped),
            }
        }
    }

    /// Returns the process's memory.
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Maps a stack for calls, which goes with this value. `gate` is the address of an instruction for a system call.
    ///
    /// # Errors
    /// If the process ends, or has no memory.
    pub fn make_stack(&mut self, gate: u64) -> io::Result<()> {
        self.gate = gate;
        let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK) as u64;
        let stack = self.system_call(libc::SYS_mmap, [0, STACK, access, flags, u64::MAX, 0])?;
        match stack.cast_signed() {
            error @ -4095..0 => Err(io::Error::from_raw_os_error(-error as i32)),
            _ => {
                self.stack = stack;
                Ok(())
            }
        }
    }

    /// Has the thread make a system call, which needs no stack.
    fn system_call(&self, number: i64, [rdi, rsi, rdx, r10, r8, r9]: [u64; 6]) -> io::Result<u64> {
        let (rip, rax) = (self.gate, number as u64);
        let called = user_regs_struct { rip, rax, rdi, rsi, rdx, r10, r8, r9, ..self.registers };
        self.run(called, || {
            loop {
                go_on(libc::PTRACE_SINGLESTEP, self.thread, 0)?;
                let stopped = self.wait(PATIENCE)?;
                let registers = ptrace::getregs(self.thread)?;
                match (stopped, registers.rip.wrapping_sub(self.gate)) {
                    (Stopped::Signal(_), 2) => return Ok(registers.rax),
                    // All of the process was asked to stop.
                    (Stopped::Asked, 0) => {}
                    _ => return Err(io::Error::other("it makes no system calls")),
                }
            }
        })
    }

    /// Calls a function of the process on the stack that was made; `arguments` gets the address to which `data` was written.
    ///
    /// # Errors
    /// If the process ends, the function fails, or does not return in time.
    pub fn call(
        &self,
        function: u64,
        data: &[u8],
        arguments: impl FnOnce(u64) -> [u64; 4],
    ) -> io::Result<u64> {
        let place = (self.stack + STACK - data.len() as u64) & !15;
        self.memory.write_all_at(data, place)?;
        let stack = place - 8;
        // A return to address 0 stops the thread.
        self.memory.write_all_at(&0_u64.to_ne_bytes(), stack)?;
        let [rdi, rsi, rdx, rcx] = arguments(place);
        let called =
            user_regs_struct { rip: function, rsp: stack, rdi, rsi, rdx, rcx, rax: 0, ..self.registers };
        self.run(called, || self.returned())
    }

    /// Has the thread go on with these registers as `run` says, without signals, and then puts back its own.
    fn run(&self, registers: user_regs_struct, run: impl FnOnce() -> io::Result<u64>) -> io::Result<u64> {
        let (mut before, mut blocked) = (0, BLOCKED);
        mask(libc::PTRACE_GETSIGMASK, self.thread, &mut before)?;
        mask(libc::PTRACE_SETSIGMASK, self.thread, &mut blocked)?;
        // The kernel must not repeat a system call that it interrupted.
        let called = user_regs_struct { orig_rax: u64::MAX, eflags: registers.eflags & !FLAGS, ..registers };
        let result = ptrace::setregs(self.thread, called).map_err(io::Error::from).and_then(|()| run());
        let restored = self.restore();
        mask(libc::PTRACE_SETSIGMASK, self.thread, &mut before).and(restored).and(result)
    }

    /// Lets the thread run until it returns to address 0; the function's result.
    fn returned(&self) -> io::Result<u64> {
        let until = Instant::now() + PATIENCE;
        let mut signal = 0;
        loop {
            go_on(libc::PTRACE_CONT, self.thread, signal)?;
            signal = match self.wait(until.saturating_duration_since(Instant::now()))? {
                Stopped::Signal(libc::SIGSEGV) => {
                    let registers = ptrace::getregs(self.thread)?;
                    return match registers.rip {
                        0 => Ok(registers.rax),
                        place => Err(io::Error::other(format!("a function faulted at {place:#x}"))),
                    };
                }
                Stopped::Signal(other) => other,
                Stopped::Asked if Instant::now() > until => {
                    return Err(io::Error::other("a function did not return"));
                }
                Stopped::Asked => 0,
                Stopped::Ended => return Err(io::Error::other("it ended")),
            };
        }
    }

    fn restore(&self) -> io::Result<()> {
        let (mut vectors, mut registers) = (self.vectors.clone(), self.registers);
        transfer(libc::PTRACE_SETREGSET, self.thread, &mut vectors)?;
        // Zero is no system call's number that would be repeated.
        if registers.orig_rax.cast_signed() < 0 {
            registers.orig_rax = u64::MAX;
        }
        Ok(ptrace::setregs(self.thread, registers)?)
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // It may have ended.
        if self.stack != 0 {
            let _ = self.system_call(libc::SYS_munmap, [self.stack, STACK, 0, 0, 0, 0]);
        }
        let _ = go_on(libc::PTRACE_DETACH, self.thread, self.signal);
    }
}

/// Reads or writes the set of signals that a thread blocks.
fn mask(request: libc::c_uint, thread: Pid, mask: &mut u64) -> io::Result<()> {
    // SAFETY: the request reads or writes a set, whose place and size are right.
    let result = unsafe { libc::ptrace(request, thread.as_raw(), size_of::<u64>(), ptr::from_mut(mask)) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

fn vectors(thread: Pid) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 64 << 10];
    let size = transfer(libc::PTRACE_GETREGSET, thread, &mut bytes)?;
    bytes.truncate(size);
    Ok(bytes)
}

/// Reads or writes a thread's vector registers; how many bytes they have.
fn transfer(request: libc::c_uint, thread: Pid, bytes: &mut [u8]) -> io::Result<usize> {
    let mut place = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the request reads or writes the vector, whose place and length are right, and sets the length that it used.
    let result = unsafe { libc::ptrace(request, thread.as_raw(), NT_X86_XSTATE, &raw mut place) };
    Errno::result(result)?;
    Ok(place.iov_len)
}

//! `allotment record` changes nothing about a program, and says what it cannot record.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use allotment_trace::{Action, open};
use object::{Object, ObjectSymbol};

use crate::files;
use crate::record::{CACHE, present, record};

/// Compiles a program in C with these options.
fn compiled(program: &str, source: &str, options: &[&str]) {
    let file = format!("{program}.c");
    fs::write(&file, format!("#define _GNU_SOURCE\n{source}")).unwrap();
    let built = Command::new("cc").args(["-w", "-o", program, &file]).args(options).status();
    assert!(built.unwrap().success(), "{source}");
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The sizes of the blocks in a trace.
fn sizes(trace: impl AsRef<Path>) -> Vec<u64> {
    let events = open(trace.as_ref()).unwrap().map(|event| event.unwrap().event.action);
    events
        .filter_map(|action| if let Action::Allocate { size, .. } = action { Some(size) } else { None })
        .collect()
}

/// The tool's library, unpacked.
fn library() -> String {
    let (_folder, [trace]) = files(["run.trace"]);
    assert!(record(&["-o", &trace, "--", "ls", "/"], b"").status.success());
    format!("{CACHE}/allotment/{}/liballotment_preload.so", env!("CARGO_PKG_VERSION"))
}

/// A child has a trace of its own, by whatever call it was made; that of the parent has the parent's blocks only, all of them.
#[test]
fn a_child_by_any_call_leaves_its_parent_s_trace_alone() {
    let (folder, [program, trace]) = files(["program", "run.trace"]);
    let source = "
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static void *other(void *unused) { for (;;) free(malloc(3000)); }
int main(int count, char **arguments) {
    for (int i = 0; i < 200; i++) free(malloc(100 + i));
    int how = atoi(arguments[1]);
    pid_t child = how == 0 ? _Fork() : how == 1 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    for (int i = 0; i < 5000; i++) {
        void *block = malloc(child ? 1000 + i % 7 : 20 + i % 5);
        if (i % 50 == 0) usleep(10);
        free(block);
    }
    if (!child) _exit(0);
    waitpid(child, 0, 0);
}";
    compiled(&program, source, &[]);
    for how in ["0", "1", "2", "0", "1"] {
        let output = record(&["-o", &trace, "--children", "--", &program, how], b"");
        assert!(output.status.success(), "{how}: {}", said(&output));
        let blocks = sizes(&trace);
        assert_eq!(blocks.len(), 5200, "{how}: {}", said(&output));
        assert_eq!(blocks.iter().filter(|size| (1000..1007).contains(*size)).count(), 5000);
        let beside = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let child: Vec<_> = beside
            .filter(|path| path.extension().is_some_and(|end| end == "trace") && !path.ends_with("run.trace"))
            .collect();
        assert_eq!(child.len(), 1, "{how}");
        assert_eq!(sizes(&child[0]).iter().filter(|&&size| size < 25).count(), 5000);
        fs::remove_file(&child[0]).unwrap();
    }
}

/// What outlives the program is recorded to its end with `--children`, and named without.
#[test]
fn a_daemon_is_recorded_or_named() {
    let (_folder, [program, trace]) = files(["program", "run.trace"]);
    let source = "
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    if (fork()) _exit(0);
    setsid();
    if (fork()) _exit(0);
    chdir(\"/\");
    for (int i = 0; i < 256; i++) close(i);
    open(\"/dev/null\", O_RDWR), dup(0), dup(0);
    for (int k = 0; k < 10; k++) {
        for (int i = 0; i < 1000; i++) free(malloc(100 + i));
        usleep(100000);
    }
}";
    compiled(&program, source, &[]);
    let output = record(&["-o", &trace, "--", &program], b"");
    assert!(said(&output).contains("still run") && said(&output).contains("--children"), "{}", said(&output));
    assert_eq!(output.status.code(), Some(1));
    let output = record(&["-o", &trace, "--children", "--", &program], b"");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(sizes(&trace).len(), 10_000, "{}", said(&output));
    // A shell that has a trace itself.
    let output =
        record(&["-o", &trace, "--", "sh", "-c", "x=$(ls /); sleep 30 >/dev/null 2>&1 & x=$(ls /)"], b"");
    assert!(output.status.success() && said(&output).contains("still running, and not"), "{}", said(&output));
}

/// A program whose files may not grow beyond a limit goes on, and its trace goes as far as the limit.
#[test]
fn a_limit_on_files_ends_only_the_recording() {
    let (_folder, [program, trace, out]) = files(["program", "run.trace", "out"]);
    let source = "
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
    for (int i = 0; i < 300000; i++) free(malloc(100 + i % 999));
    FILE *out = fopen(arguments[1], \"w\");
    fputs(\"all of it\", out);
    return fclose(out);
}";
    compiled(&program, source, &[]);
    for (limit, least) in [("300", 30_000), ("8", 200), ("1", 0)] {
        let script = format!("ulimit -f {limit}; exec '{program}' '{out}'");
        let output = record(&["-o", &trace, "--", "bash", "-c", &script], b"");
        assert_eq!(fs::read_to_string(&out).unwrap(), "all of it", "{}", said(&output));
        fs::remove_file(&out).unwrap();
        let told =
            if least == 0 { "recording could not begin" } else { "recording ended before the program did" };
        assert!(said(&output).contains(told), "{limit}: {}", said(&output));
        if least > 0 {
            assert!(output.status.success());
            assert!(sizes(&trace).len() > least, "{} of {limit}", sizes(&trace).len());
        }
    }
}

/// Where the disk is full no window is unmapped twice, also if it is full at the first event after a pause.
#[test]
fn a_full_disk_unmaps_nothing_twice() {
    let (folder, [program]) = files(["program"]);
    // The program's own functions come first, also for the recorder.
    let source = "
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static int calls, twice; static void *last;
int posix_fallocate(int file, off_t at, off_t size) {
    return calls++ ? ENOSPC : ftruncate(file, at + size) ? errno : 0;
}
int munmap(void *place, size_t size) {
    twice += place == last, last = place;
    return syscall(SYS_munmap, place, size);
}
int main(int count, char **arguments) {
    char path[4096];
    snprintf(path, sizeof path, \"%s.control\", getenv(\"ALLOTMENT_RECORD\"));
    int control = open(path, O_RDWR);
    long off = 0, on = 1;
    for (int i = 0; i < atoi(arguments[1]); i++) free(malloc(100));
    for (int i = 0; i < 100000; i++) {
        pwrite(control, &on, 8, 0);
        void *skipped = malloc(200);
        pwrite(control, &off, 8, 0);
        free(skipped);
    }
    return twice ? 3 : calls < 2 ? 4 : 0;
}";
    compiled(&program, source, &["-rdynamic"]);
    let library = library();
    for offset in 0..8 {
        let raw = folder.path().join(format!("raw{offset}"));
        fs::write(raw.with_extension("control"), [0; 4096]).unwrap();
        let mut command = Command::new(&program);
        command.arg(offset.to_string()).env("LD_PRELOAD", &library).env("ALLOTMENT_RECORD", &raw);
        assert_eq!(command.status().unwrap().code(), Some(0), "{offset}");
    }
}

/// A control file that is too short is not used.
#[test]
fn an_empty_control_file_does_no_harm() {
    let (folder, [raw]) = files(["raw"]);
    fs::write(folder.path().join("raw.control"), "").unwrap();
    let output =
        Command::new("ls").arg("/").env("LD_PRELOAD", library()).env("ALLOTMENT_RECORD", &raw).output();
    assert!(output.unwrap().status.success());
    assert!(fs::read_dir(folder.path()).unwrap().count() > 1, "it was recorded");
}

/// A program that closes all descriptors has its own file where the recorder's was; it is not written to, made longer or closed.
#[test]
fn a_descriptor_that_is_used_again_is_the_program_s() {
    let (_folder, [program, trace, out]) = files(["program", "run.trace", "out"]);
    let source = "
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **arguments) {
    free(malloc(100));
    for (int i = 3; i < 1024; i++) close(i);
    int out = open(arguments[1], O_RDWR | O_CREAT, 0600);
    for (int i = 3; i < 1000; i++) if (i != out) dup2(out, i);
    for (int i = 0; i < 200000; i++) free(malloc(100 + i % 999));
    if (!fork()) {
        free(malloc(100));
        _exit(write(600, \"mine\", 4) != 4);
    }
    int status;
    wait(&status);
    return status != 0;
}";
    compiled(&program, source, &[]);
    let output = record(&["-o", &trace, "--", &program, &out], b"");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(fs::read_to_string(&out).unwrap(), "mine");
    assert_eq!(sizes(&trace).len(), 200_001);
}

/// A program that finds its files no more, as in another root, is recorded to its end, and its children, which can create none, are told.
#[test]
fn a_folder_that_is_gone_loses_only_children() {
    let (folder, [program, trace]) = files(["hidden", "hidden.trace"]);
    let source = "
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    char old[4096], new[4100];
    free(malloc(1));
    snprintf(old, sizeof old, \"%s\", getenv(\"ALLOTMENT_RECORD\"));
    *strrchr(old, '/') = 0;
    snprintf(new, sizeof new, \"%s.x\", old);
    if (rename(old, new)) return 1;
    for (int i = 0; i < 300000; i++) free(malloc(1000 + i));
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            free(malloc(5));
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    free(malloc(777));
    return rename(new, old) ? 2 : 0;
}
";
    compiled(&program, source, &[]);
    for children in [&[][..], &["--children"]] {
        let output = record(&[children, &["-o", &trace, "--", &program]].concat(), b"");
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(said(&output).contains("2 children are not recorded"), "{}", said(&output));
        assert!(sizes(&trace).contains(&777), "{}", said(&output));
    }
    drop(folder);
}

/// The recorder takes less of the stack than the smallest signal stacks and coroutines have, at each call and whenever a part of its file is full.
#[test]
fn small_stacks_are_large_enough() {
    let (_folder, [program, trace]) = files(["stack", "stack.bin"]);
    let source = "
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
static ucontext_t caller, own;
static void run(void) {
    for (int i = 0; i < 300000; i++) free(malloc(1000 + i));
    void *block = realloc(malloc(10), 1000);
    free(block);
    if (posix_memalign(&block, 64, 64)) abort();
    free(block);
    free(calloc(1, 10));
    swapcontext(&own, &caller);
}
int main(void) {
    static unsigned char stack[65536];
    free(malloc(1));
    memset(stack, 0xa5, sizeof stack);
    getcontext(&own);
    own.uc_stack.ss_sp = stack;
    own.uc_stack.ss_size = sizeof stack;
    makecontext(&own, run, 0);
    swapcontext(&caller, &own);
    size_t left = 0;
    while (stack[left] == 0xa5) left++;
    printf(\"%zu bytes\", sizeof stack - left);
    return sizeof stack - left > 3500;
}
";
    compiled(&program, source, &[]);
    let ways: [&[&str]; 2] = [&[], &["--exact-times", "--addresses"]];
    for how in ways {
        let output = record(&[how, &["-o", &trace, "--", &program]].concat(), b"");
        assert_eq!(output.status.code(), Some(0), "{how:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

/// A program that may make few system calls is not ended by those of the recorder, nor are its children; its trace goes as far as it can.
#[test]
fn a_program_that_limits_its_system_calls_goes_on() {
    let (_folder, [program, trace]) = files(["program", "run.bin"]);
    let source = "
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
static struct sock_filter calls[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(SYS_exit), ALLOW(SYS_clone), ALLOW(SYS_set_robust_list), ALLOW(SYS_gettid), ALLOW(SYS_rseq),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
int main(int count, char **arguments) {
    struct sock_fprog filter = { sizeof calls / sizeof *calls, calls };
    const char *how = arguments[1];
    free(malloc(7));
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    // What is refused limits nothing.
    long wrong = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL);
    long limited = !strcmp(how, \"none\") ? 0
        : !strcmp(how, \"strict\") ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)
        : !strcmp(how, \"call\") ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter)
        : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
    if (!strcmp(how, \"fork\")) syscall(SYS_clone, 0, 0, 0, 0, 0);
    for (int i = 0; i < 200000; i++) free(malloc(100 + i % 999));
    syscall(SYS_exit, wrong == -1 && limited == 0 ? 7 : 1);
}";
    compiled(&program, source, &[]);
    for how in ["none", "strict", "call", "filter", "fork"] {
        let output = record(&["-o", &trace, "--", &program, how], b"");
        assert_eq!(output.status.code(), Some(7), "{how}: {}", said(&output));
        let (told, blocks) = (said(&output).contains("few system calls (seccomp)"), sizes(&trace).len());
        assert_eq!((told, blocks == 200_001), (how != "none", how == "none"), "{how}: {}", said(&output));
        assert!(blocks > 10_000, "{how}: {blocks}");
    }
}

/// All C libraries have what the library needs, so a program of another one than the tool's starts.
#[test]
fn the_library_needs_no_particular_c_library() {
    let bytes = fs::read(library()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let imports: Vec<_> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined() && !symbol.is_weak())
        .map(|symbol| symbol.name().unwrap().to_owned())
        .collect();
    assert!(imports.iter().any(|name| name == "mmap"));
    // A program with more rights than its caller writes no file of the caller's choice.
    assert!(
        imports.iter().any(|name| name == "secure_getenv") && !imports.iter().any(|name| name == "getenv")
    );
    // Names that begin so are a library's own; musl has this one.
    let foreign = |name: &&String| name.starts_with('_') && *name != "__errno_location";
    assert_eq!(imports.iter().filter(foreign).count(), 0, "{imports:?}");
    let text = String::from_utf8_lossy(&bytes);
    for other in ["libgcc_s.so", "ld-linux"] {
        assert!(!text.contains(other), "{other}");
    }
}

/// A program that is started without the recording's environment is named, whether it replaces the one before or is its child.
#[test]
fn a_cleared_environment_is_told() {
    let (_folder, [program, trace]) = files(["program", "run.trace"]);
    for command in [&["env", "-i", "ls", "/"][..], &["sh", "-c", "env -i ls /; x=1"]] {
        let output = record(&[&["-o", &trace, "--"], command].concat(), b"");
        assert!(output.status.success());
        assert!(said(&output).contains("ls was started without LD_PRELOAD"), "{}", said(&output));
    }
    let source = "
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
int main(int count, char **arguments) {
    char *empty[] = {0}, *list[] = {\"true\", 0};
    pid_t child;
    free(malloc(100));
    if (posix_spawn(&child, \"/there/is/none\", 0, 0, list, empty) == 0) return 1;
    if (posix_spawnp(&child, \"true\", 0, 0, list, count > 1 ? empty : environ)) return 1;
    int status;
    wait(&status);
    return status;
}";
    compiled(&program, source, &[]);
    let output = record(&["-o", &trace, "--", &program, "x"], b"");
    assert!(output.status.success() && said(&output).contains("true was started"), "{}", said(&output));
    let output = record(&["-o", &trace, "--", &program], b"");
    assert!(output.status.success() && !said(&output).contains("was started"), "{}", said(&output));
}

/// So it is for each function that starts a program, most of which call each other inside the C library.
#[test]
fn a_cleared_environment_is_told_whatever_starts_the_program() {
    let (_folder, [program, trace]) = files(["program", "run.trace"]);
    let source = "
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TEN \"1\", \"2\", \"3\", \"4\", \"5\", \"6\", \"7\", \"8\", \"9\", \"10\"
#define CHECK \"-c\", \"test $# = 40 && test $1$5$6$7${40} = 156710\", \"sh\", TEN, TEN, TEN, TEN, (char *)0
int main(int count, char **arguments) {
    char *how = arguments[1], *list[] = {\"true\", 0}, *none[] = {0};
    free(malloc(100));
    if (!strcmp(how, \"fails\")) {
        if (execl(\"/there/is/none\", \"none\", (char *)0) != -1 || errno != ENOENT) return 3;
        if (execle(\"/there/is/none\", \"none\", (char *)0, none) != -1) return 3;
        if (syscall(SYS_execve, \"/there/is/none\", list, none) != -1 || errno != ENOENT) return 3;
        return system(NULL) ? 0 : 3;
    }
    if (!strcmp(how, \"execle\")) execle(\"/bin/sh\", \"sh\", CHECK, none);
    if (!strcmp(how, \"execve\")) syscall(SYS_execve, \"/bin/true\", list, none);
    if (!strcmp(how, \"execveat\")) execveat(AT_FDCWD, \"/bin/true\", list, none, 0);
    if (!strcmp(how, \"SYS_execveat\")) syscall(SYS_execveat, AT_FDCWD, \"/bin/true\", list, none, 0);
    clearenv();
    if (!strcmp(how, \"execl\")) execl(\"/bin/sh\", \"sh\", CHECK);
    if (!strcmp(how, \"execlp\")) execlp(\"sh\", \"sh\", CHECK);
    if (!strcmp(how, \"system\")) return system(\"exit 0\");
    if (!strcmp(how, \"popen\")) return pclose(popen(\"exit 0\", \"r\"));
    return 4;
}";
    compiled(&program, source, &[]);
    let mut ways = vec!["execve", "execveat", "SYS_execveat", "system", "popen"];
    if cfg!(target_arch = "x86_64") {
        ways.extend(["execl", "execlp", "execle"]);
    }
    for way in ways {
        let output = record(&["-o", &trace, "--", &program, way], b"");
        assert!(output.status.success(), "{way}: {}", said(&output));
        assert!(said(&output).contains(" was started without LD_PRELOAD"), "{way}: {}", said(&output));
    }
    let output = record(&["-o", &trace, "--", &program, "fails"], b"");
    assert!(output.status.success() && !said(&output).contains("was started"), "{}", said(&output));
}

/// A child that may write no files has no trace, and costs no other one.
#[test]
fn a_child_that_cannot_be_recorded_is_told() {
    let (folder, [trace]) = files(["run.trace"]);
    let script = "(ulimit -f 0; sh -c :); sh -c :; exit 7";
    let output = record(&["--children", "-o", &trace, "--", "sh", "-c", script], b"");
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    for text in
        ["recording could not begin in the process", "1 more processes or program images without a trace"]
    {
        assert!(said(&output).contains(text), "{}", said(&output));
    }
    let traces = fs::read_dir(folder.path()).unwrap().count();
    assert!(traces >= 3, "{traces} traces: {}", said(&output));
}

/// By default events of some milliseconds have one time, and times are differences: a byte each, of which compression leaves nearly nothing.
#[test]
fn times_take_little_room() {
    let (_folder, [program, plain, small]) = files(["program", "run.bin", "run.bin.zst"]);
    let source = "
#include <stdlib.h>
int main(void) { for (int i = 0; i < 200000; i++) free(malloc(100 + i % 999)); }";
    compiled(&program, source, &[]);
    let length = |out: &str, times: &[&str]| {
        let output = record(&[times, &["-o", out, "--", &program]].concat(), b"");
        assert!(output.status.success(), "{}", said(&output));
        fs::metadata(out).unwrap().len()
    };
    let [coarse, none] = [&[][..], &["--no-times"]].map(|times| length(&plain, times));
    assert!(coarse < none + 400_000 + 100_000, "{coarse} {none}");
    let [coarse, exact] = [&[][..], &["--exact-times"]].map(|times| length(&small, times));
    assert!(4 * coarse < exact, "{coarse} {exact}");
}

/// A warning for programs with one of this project's heaps, with symbols or without.
#[test]
fn our_own_heaps_are_told_before() {
    let (_folder, [program, source, trace]) = files(["program", "main.rs", "run.trace"]);
    let text = "mod allotment { pub mod os { pub mod growing { #[inline(never)] pub fn take(n: usize) -> usize { n } } } }\n\
                fn main() { println!(\"{}\", allotment::os::growing::take(std::env::args().count())) }";
    fs::write(&source, text).unwrap();
    let build = Command::new("rustc").args([&source, "-o", &program, "--crate-name", "app"]).status();
    assert!(build.unwrap().success());
    let output = record(&["-o", &trace, "--", &program], b"");
    assert!(
        output.status.success() && said(&output).contains("its own allocator (allotment)"),
        "{}",
        said(&output)
    );
}

#[test]
fn python_is_told_of_the_variable() {
    if !present("python3") {
        return;
    }
    let (_folder, [trace]) = files(["run.trace"]);
    let output = record(&["-o", &trace, "--", "python3", "-c", "print(1)"], b"");
    assert!(said(&output).contains("set PYTHONMALLOC=malloc"), "{}", said(&output));
    let output =
        record(&["-o", &trace, "--", "env", "PYTHONMALLOC=malloc", "python3", "-c", "print(1)"], b"");
    assert!(output.status.success());
}

/// A copy of the library that can only lie in a folder with a space is refused before the program runs.
#[test]
fn a_path_with_spaces_is_refused() {
    let (folder, [trace]) = files(["run.trace"]);
    for name in ["with spaces", "with:colon", "with$LIB"] {
        let odd = folder.path().join(name);
        fs::create_dir(&odd).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_allotment"))
            .args(["record", "-o", &trace, "--", "ls", "/"])
            .env_remove("ALLOTMENT_PRELOAD")
            .envs([("XDG_CACHE_HOME", &odd), ("TMPDIR", &odd)])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {}", said(&output));
        assert!(
            said(&output).contains("the system loads no library from a path with spaces"),
            "{}",
            said(&output)
        );
        assert!(output.stdout.is_empty());
    }
}

/// For a user without rights a program with capabilities is one with rights of its own.
#[test]
fn capabilities_are_told_before() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give capabilities");
        return;
    }
    let (folder, [program, tool, trace]) = files(["program", "tool", "run.trace"]);
    compiled(&program, "int main(void) { return 0; }", &[]);
    fs::copy(env!("CARGO_BIN_EXE_allotment"), &tool).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // cap_net_bind_service, permitted and effective, in the second version of the form.
    let capabilities = [0x0200_0001_u32, 1 << 10, 0, 0, 0].map(u32::to_le_bytes).concat();
    rustix::fs::setxattr(&program, "security.capability", &capabilities, rustix::fs::XattrFlags::empty())
        .unwrap();
    let run = || {
        let mut command = Command::new(&tool);
        command.args(["record", "-o", &trace, "--", &program]).env("XDG_CACHE_HOME", folder.path());
        command.env_remove("ALLOTMENT_PRELOAD").uid(65534).gid(65534).output().unwrap()
    };
    let output = run();
    assert!(said(&output).contains("capabilities"), "{}", said(&output));
    assert_eq!(output.status.code(), Some(1));
}

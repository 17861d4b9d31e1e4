//! Runs a C program on `liballotment.so`: memory that is free is given, limits hold, and the functions tell of this heap.
#![cfg(target_os = "linux")]

#[path = "../src/options.rs"]
mod options;

mod build;

use build::library;
use options::Options;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// Runs the C compiler for a file in the target folder.
fn compile(name: &str, arguments: &[&str]) -> PathBuf {
    let built = Path::new(FOLDER).join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-fno-builtin", "-rdynamic", "-pthread"]).args(arguments).arg("-o").arg(&built);
    let output = cc.output().expect("`cc` starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    built
}

fn allotment() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| library("allotment-capi", "allotment", ""))
}

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("malloc", &[&format!("{HERE}/tests/malloc.c")]))
}

fn output(program: &Path, what: &str, options: &str) -> Output {
    let mut command = Command::new(program);
    command.arg(what).env("LD_PRELOAD", allotment()).env("ALLOTMENT_OPTIONS", options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{what}: {output:?}");
    output
}

/// What the program prints.
fn run(what: &str, options: &str) -> String {
    String::from_utf8(output(program(), what, options).stdout).unwrap()
}

fn number(text: &str) -> usize {
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// Small requests get what other classes keep in empty pages, before they fail.
#[test]
fn small_requests_get_all_memory() {
    let [fresh, used] = ["small", "small_after_others"].map(|what| number(&run(what, "limit=16M")));
    assert!(fresh > 16 * 1024 * 98 / 100, "{fresh} KiB");
    // The program's own buffer and the lists of its thread may lie in another page.
    assert!(used + 512 >= fresh, "{used} KiB of {fresh}");
}

#[test]
fn blocks_change_in_place_when_there_is_no_other() {
    for what in ["grow_in_place", "grow_over_others"] {
        assert_eq!(run(what, "limit=16M"), "grown\nshrunk\n", "{what}");
    }
}

#[test]
fn a_thread_that_starts_in_a_shortage_gets_lists_later() {
    assert_eq!(run("start_without_memory", "limit=16M"), "null\nlists\n");
    assert_eq!(run("start_without_keys", ""), "no lists, lists\n");
}

/// The limit holds in a program whose libraries allocate before `liballotment.so` is started.
#[test]
fn limits_hold_from_the_first_request() {
    // It asks for more than each limit before that.
    let early = "#include <stdlib.h>\n#include <unistd.h>\nvoid *early, *large;\n\
                 __attribute__((constructor)) static void start(void) {\n\
                 early = malloc(1000), large = malloc(200 << 20);\n\
                 if (large && write(2, \"early\", 5)) free(large);\n}\n";
    let source = Path::new(FOLDER).join("early.c");
    fs::write(&source, early).unwrap();
    let shared = compile("libearly.so", &["-shared", "-fPIC", source.to_str().unwrap()]);
    let source = format!("{HERE}/tests/malloc.c");
    let program = compile("malloc_early", &[&source, "-Wl,--no-as-needed", shared.to_str().unwrap()]);
    for (options, least, most) in [("limit=64M", 60, 64), ("limit=8MiB", 6, 8), ("limit=0.125g", 120, 128)] {
        let output = output(&program, "count", options);
        let count = number(&String::from_utf8_lossy(&output.stdout));
        assert!((least..=most).contains(&count), "{options}: {count} MiB");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
    let output = output(&program, "count", "what,limit=64M,limit=64X");
    assert!(number(&String::from_utf8_lossy(&output.stdout)) <= 64, "what is understood counts");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!errors.contains("early"), "{errors}");
    for word in ["`what`", "`limit=64X`"] {
        assert_eq!(errors.matches(word).count(), 1, "{errors}");
    }
}

/// A read after the free is an error of a sampled block, and goes unnoticed where none is sampled.
#[test]
fn sampled_blocks_lie_between_guard_pages() {
    run("sampled", "sample=0");
    let mut command = Command::new(program());
    let output = command
        .arg("sampled")
        .env("LD_PRELOAD", allotment())
        .env("ALLOTMENT_OPTIONS", "sample=1000")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{text}");
    assert!(text.contains("use after free") && text.contains("block of 24 bytes"), "{text}");
}

/// The heap keeps to a limit of addresses that the program sets when it runs already.
#[test]
fn limits_of_the_program_itself_hold() {
    let count = number(&run("limit_addresses", ""));
    assert!((240..=256).contains(&count), "{count} MiB of 256");
}

/// A program that runs with more rights than its caller does not do what its caller's environment says.
#[test]
fn programs_with_more_rights_read_no_options() {
    let library = allotment().to_str().unwrap();
    let built = compile("malloc_of_others", &[&format!("{HERE}/tests/malloc.c"), library]);
    // Another group of this user; the superuser may choose any.
    let own = fs::metadata(&built).unwrap().gid();
    let groups = Command::new("id").arg("-G").output().unwrap().stdout;
    let groups = String::from_utf8(groups).unwrap();
    let other = groups.split_whitespace().map(|group| group.parse().unwrap()).find(|&group| group != own);
    let is_changed = chown(&built, None, Some(other.unwrap_or(own + 1))).is_ok();
    fs::set_permissions(&built, fs::Permissions::from_mode(0o2755)).unwrap();
    let output = Command::new(&built).arg("count").env("ALLOTMENT_OPTIONS", "limit=8M").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // Where this user has one group only, or the folder allows no such programs, it has the same rights.
    let expected = if text.trim().ends_with(" 1") { 400..=400 } else { 6..=8 };
    assert!(expected.contains(&number(&text)), "{text} (another group: {is_changed})");
}

#[test]
fn valloc_aligns_to_pages_of_the_system() {
    assert_eq!(run("large_pages", ""), "0 0 0 1 1\n".repeat(3));
}

/// The text has the form of the GNU C library, and the figures of this heap.
#[test]
fn malloc_info_tells_of_this_heap() {
    let text = run("information", "");
    let (first, xml) = text.split_once('\n').unwrap();
    let figures: Vec<usize> = first.split(' ').map(|figure| figure.parse().unwrap()).collect();
    let [committed, used, refused] = figures[..] else { panic!("{first}") };
    assert_eq!(refused as i32, 22, "EINVAL");
    assert!(
        xml.starts_with("<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n")
            && xml.ends_with("</malloc>\n0\n"),
        "{xml}"
    );
    for (element, places) in
        [("system type=\"current\"", 2), ("system type=\"max\"", 2), ("aspace type=\"total\"", 2)]
    {
        let line = format!("<{element} size=\"{committed}\"/>");
        assert_eq!(xml.matches(&line).count(), places, "{line} in {xml}");
    }
    let rest = xml.rsplit_once("<total type=\"rest\" count=\"1\" size=\"").unwrap().1;
    let rest: usize = rest.split('"').next().unwrap().parse().unwrap();
    assert!(rest.abs_diff(committed - used) < 64 * 1024, "{rest} of {committed} - {used}");
    // Every element is closed.
    let opened = xml.matches('<').count() - xml.matches("</").count() - xml.matches("/>").count();
    assert_eq!(opened, xml.matches("</").count(), "{xml}");
}

/// What was reserved is there, by the kernel's count.
#[test]
fn reserved_bytes_fault_no_more() {
    let text = run("reserve", "");
    let figures: Vec<i64> = text.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
    let [refused, done, without, with] = figures[..] else { panic!("{text}") };
    assert_eq!((refused, done), (12, 0), "ENOMEM");
    assert!(without >= 60 * 256 && with <= 4, "{text}");
}

#[test]
fn huge_pages_are_an_option() {
    let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let kibibytes = |options| number(&run("huge", options));
    assert_eq!(kibibytes("nothp"), 0);
    if mode.contains("[madvise]") || mode.contains("[always]") {
        assert!(kibibytes("stats,thp") >= 60 * 1024);
    }
}

#[test]
fn options_are_read_as_the_tool_reads_them() {
    let limit = |text: &str| {
        let mut unknown = Vec::new();
        let options = Options::read(&format!("limit={text}"), |word| unknown.push(word.to_owned()));
        assert_eq!(unknown.is_empty(), options.limit.is_some(), "{text}");
        options.limit
    };
    for (text, bytes) in [
        ("4096", 4096),
        ("64K", 64 << 10),
        ("64k", 64 << 10),
        ("64MiB", 64 << 20),
        ("64Mi", 64 << 20),
        ("0x4000000", 64 << 20),
        (" 64M", 64 << 20),
        ("64mb", 64 << 20),
        ("64 MiB", 64 << 20),
        ("1.5G", 3 << 29),
        ("0.125GiB", 1 << 27),
        ("1T", 1 << 40),
        ("12B", 12),
        ("4096.0", 4096),
        // No limit: more than a machine can address.
        ("20000000T", u64::MAX),
        ("18446744073709551616", u64::MAX),
        ("99999999999999999999999999999999999999999", u64::MAX),
        ("18446744073709551616.5K", u64::MAX),
        ("0x10000000000000000", u64::MAX),
    ] {
        assert_eq!(limit(text), Some(usize::try_from(bytes).unwrap_or(usize::MAX)), "{text}");
    }
    for text in [
        "1.5", "1.5B", "1.0B", "", "0", "0.0K", "M", "-1", "1.M", "1.5.5M", "1.-5M", "1X", "1KiX", "1BB",
        "1iB", "é", "1é",
    ] {
        assert_eq!(limit(text), None, "{text}");
    }
    let mut unknown = Vec::new();
    let options = Options::read(" stats,what ,, limit=1M,background,sample = 50,sample=x,limit=", |word| {
        unknown.push(word.to_owned())
    });
    assert_eq!(
        options,
        Options { stats: true, background: true, limit: Some(1 << 20), sample: Some(50), huge: None }
    );
    assert_eq!(unknown, ["what", "sample=x", "limit="]);
    assert_eq!(Options::read("thp", |_| ()).huge, Some(true));
    assert_eq!(Options::read("thp,nothp", |_| ()).huge, Some(false));
}

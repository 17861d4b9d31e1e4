//! The programs, and how they are run.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Heap, compile};
use crate::{Setup, setup};

/// A program that is run with a heap.
pub struct Program {
    pub name: &'static str,
    command: Vec<OsString>,
    input: Option<PathBuf>,
    /// Whether it prints the same on every heap.
    pub same: bool,
    /// The table to which it belongs.
    pub kind: Kind,
    /// Options for our heap, beside those of the heap.
    options: &'static str,
    /// For a server: what is run beside it.
    client: Option<Client>,
}

/// What a program shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What people run.
    Whole,
    /// Two threads that do nothing but allocate and free.
    Threads,
    /// What large pages help or harm.
    Pages,
}

/// A program that is a client of a server.
struct Client {
    command: Vec<OsString>,
    /// Where the server listens.
    socket: PathBuf,
    /// Folders of libraries of both.
    paths: OsString,
}

/// One run.
pub struct Run {
    pub success: bool,
    pub output: Vec<u8>,
    /// Processor time, user and system.
    pub seconds: f64,
    /// Time from start to end.
    pub wall: f64,
    /// The most memory that the program had.
    pub kibibytes: i64,
}

impl Run {
    /// The last bit of what it printed.
    pub fn tail(&self) -> String {
        let text = String::from_utf8_lossy(&self.output);
        text.chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect()
    }
}

/// What the launcher writes for a program, into a file in `folder`.
const FIGURES: &str = "figures";

/// Reads what the launcher has written: whether the program succeeded, its processor time, its time, and the most memory that it had.
fn figures(folder: &Path) -> Result<(bool, f64, f64, i64)> {
    let file = folder.join(FIGURES);
    let text = fs::read_to_string(&file).context("the launcher has written nothing")?;
    fs::remove_file(file)?;
    let [status, seconds, wall, kibibytes] = text.split_whitespace().collect::<Vec<_>>()[..] else {
        bail!("the launcher writes `{text}`");
    };
    Ok((status == "0", seconds.parse()?, wall.parse()?, kibibytes.parse()?))
}

impl Program {
    fn new(name: &'static str, program: impl Into<OsString>, arguments: &[&str]) -> Self {
        let mut command = vec![program.into()];
        command.extend(arguments.iter().map(OsString::from));
        Self { name, command, input: None, same: true, kind: Kind::Whole, options: "", client: None }
    }

    /// Runs the program once with a heap.
    pub fn run(&self, heap: &Heap, folder: &Path) -> Result<Run> {
        let mut command = Command::new(folder.join("launcher"));
        command.arg(FIGURES);
        match &heap.library {
            Some(library) => command.arg(library),
            // Debian's server is linked to another heap than the C library's, which stands behind this one.
            None => command.arg(if self.client.is_some() { "libc.so.6" } else { "" }),
        };
        let options = [heap.options, self.options].into_iter().filter(|options| !options.is_empty());
        command.env("ALLOTMENT_OPTIONS", options.collect::<Vec<_>>().join(","));
        let (recorder, instead) = &heap.recorder;
        command.args(recorder).args(&self.command[*instead..]).current_dir(folder).stdin(Stdio::null());
        let input = self.input.as_ref().map(File::open).transpose()?.map_or_else(Stdio::null, Stdio::from);
        if let Some(client) = &self.client {
            return serve(command, client, input, folder);
        }
        command.stdin(input);
        let mut output = tempfile::tempfile_in(folder)?;
        command.stdout(output.try_clone()?);
        command.status().with_context(|| format!("{} does not start", self.name))?;
        let (success, seconds, wall, kibibytes) = figures(folder)?;
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut output)?;
        std::io::Read::read_to_end(&mut output, &mut bytes)?;
        Ok(Run { success, output: bytes, seconds, wall, kibibytes })
    }
}

/// Starts a server, runs its client, and ends it.
fn serve(mut server: Command, client: &Client, input: Stdio, folder: &Path) -> Result<Run> {
    let _ = fs::remove_file(&client.socket);
    server.env("LD_LIBRARY_PATH", &client.paths).stdout(Stdio::null());
    let mut child = server.spawn().context("the server does not start")?;
    let start = Instant::now();
    while std::os::unix::net::UnixStream::connect(&client.socket).is_err() {
        if start.elapsed() > Duration::from_secs(20) {
            bail!("the server does not listen");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut command = Command::new(&client.command[0]);
    command.args(&client.command[1..]).env("LD_LIBRARY_PATH", &client.paths).stdin(input);
    let output = command.output();
    // The launcher passes it on.
    // SAFETY: the child is ours, and has not been waited for.
    unsafe { libc::kill(libc::pid_t::try_from(child.id())?, libc::SIGTERM) };
    child.wait()?;
    let (success, seconds, wall, kibibytes) = figures(folder)?;
    let output = output?;
    let success = success && output.status.success();
    Ok(Run { success, output: output.stdout, seconds, wall, kibibytes })
}

/// A program of ours that was compiled into `folder`.
pub fn plain(folder: &Path, name: &'static str, arguments: &[&str]) -> Program {
    Program::new(name, folder.join(name), arguments)
}

/// The same with options for our heap, which others ignore.
pub fn with_options(options: &'static str, program: Program) -> Program {
    Program { options, ..program }
}

/// A program of the system.
pub fn system(name: &'static str, arguments: &[&str]) -> Result<Program> {
    Ok(Program::new(name, which::which(name).with_context(|| format!("`{name}` is missing"))?, arguments))
}

/// The workloads of `threads.cpp`.
const THREADS: [&str; 7] = ["larson", "xmalloc", "scratch", "mstress", "mixed", "powers", "falling"];

/// Those of `pages.cpp`.
const PAGES: [&str; 4] = ["boxes", "visits", "reads", "table"];

macro_rules! source {
    ($name:literal) => {
        include_str!(concat!("programs/", $name))
    };
}

/// Makes all programs ready: compiles ours, writes their input, and finds or unpacks the others. What most of them have to do is divided
/// by `by`.
pub fn all(root: &Path, folder: &Path, by: u32, setup: &Setup) -> Result<Vec<Program>> {
    for (name, text) in [
        ("strings", source!("strings.cpp")),
        ("threads", source!("threads.cpp")),
        ("pages", source!("pages.cpp")),
        ("given_back", source!("given_back.cpp")),
        ("launcher", source!("launcher.cpp")),
        ("fork", source!("fork.cpp")),
        ("functions", source!("functions.cpp")),
        ("at_rest", source!("at_rest.cpp")),
        (
            "pressure",
            concat!(include_str!("../../../capi/include/allotment.h"), include_str!("programs/pressure.cpp")),
        ),
        (
            "invalid_free",
            "#include <cstdlib>\nint main() { int here[8]; void *volatile block = here + 4; free(block); }\n",
        ),
        (
            "double_free",
            "#include <cstdlib>\nint main() { void *volatile block = malloc(100); free(block); free(block); }\n",
        ),
        (
            "free_elsewhere",
            "#include <cstdlib>\n#include <thread>\nint main() { void *volatile block = malloc(100); free(block); \
             std::thread([&] { free(block); }).join(); }\n",
        ),
        (
            "realloc_of_freed",
            "#include <cstdlib>\nint main() { void *volatile block = malloc(100); free(block); return !realloc(block, 1000); }\n",
        ),
    ] {
        compile(folder, name, text)?;
    }
    let query = source!("query.sql").replace("ROWS", &(150_000 / by).to_string());
    for (name, text) in [
        ("words.py", source!("words.py")),
        ("tables.lua", source!("tables.lua")),
        ("query.sql", &query),
        ("commands.redis", source!("commands.redis")),
        ("revisions", "HEAD\n"),
    ] {
        fs::write(folder.join(name), text)?;
    }
    let mut code = File::create(folder.join("types.rs"))?;
    for number in 0..4000 / by {
        writeln!(
            code,
            "#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]\npub struct T{number} {{ pub a: u32, pub b: \
             Vec<Option<String>>, pub c: [u8; {number}] }}\nimpl T{number} {{ pub fn f(&self) -> usize {{ self.b.iter().flatten().map(|s| \
             s.len()).sum::<usize>() + self.c.len() }} }}"
        )?;
    }
    drop(code);
    // The program itself, not a script that starts it.
    let python =
        crate::child::stdout_of(Command::new("python3").args(["-c", "import sys; print(sys.executable)"]))
            .context("`python3` is missing")?;
    // The compiler itself has a heap of its own, which hides the preloaded one.
    let rustfmt = crate::child::stdout_of(Command::new("rustup").args(["which", "rustfmt"]))?;
    let provide = |name| setup::provide(name, false, setup);
    let sqlite = Program::new("sqlite3", provide("sqlite3")?, &[":memory:"]);
    let count = 120_000 / by;
    let query = format!(
        "[range({count}) | {{a: ., b: \"x\\(.)\", c: [., .]}}] | map(.b) | group_by(.[0:3]) | map(length) | add"
    );
    let divided = by.to_string();
    let repository = root.to_string_lossy();
    let mut programs = vec![
        plain(folder, "functions", &[]),
        Program::new("python3", python.trim(), &["words.py", &divided]),
        Program { input: Some(folder.join("query.sql")), ..sqlite },
        Program::new("jq", provide("jq")?, &["-n", &query]),
        Program::new("lua", provide("lua5.4")?, &["tables.lua", &divided]),
        system("git", &["-C", &repository, "log", "--stat", "--no-ext-diff", "-n", "150"])?,
        Program {
            name: "git objects",
            ..system("git", &["-C", &repository, "rev-list", "--objects", "--no-object-names", "HEAD"])?
        },
        Program {
            name: "git pack",
            input: Some(folder.join("revisions")),
            ..system("git", &["-C", &repository, "pack-objects", "--revs", "--stdout", "-q", "--threads=1"])?
        },
        Program::new("c++", which::which("c++")?, &["-O1", "-c", "-o", "/dev/null", "threads.cpp"]),
        plain(folder, "strings", &[&divided]),
        Program {
            input: Some(folder.join("types.rs")),
            ..Program::new("rustfmt", rustfmt.trim(), &["--edition", "2024"])
        },
    ];
    for (kind, program, workloads) in
        [(Kind::Threads, "threads", &THREADS[..]), (Kind::Pages, "pages", &PAGES[..])]
    {
        programs.extend(workloads.iter().map(|&name| Program {
            name,
            kind,
            ..plain(folder, program, &[name, &divided])
        }));
    }
    let redis = setup::unpacked("redis", &["redis-server"], setup)?;
    let paths = std::env::join_paths(setup::libraries(&redis)?)?;
    let socket = folder.join("redis.socket");
    let at = socket.to_string_lossy();
    let serve = |name, client: &str, arguments: &[&str], input: Option<PathBuf>| {
        let mut command =
            vec![redis.join("usr/bin").join(client).into_os_string(), "-s".into(), socket.clone().into()];
        command.extend(arguments.iter().map(OsString::from));
        let options = ["--port", "0", "--unixsocket", &at, "--save", "", "--appendonly", "no"];
        let server = Program::new(name, redis.join("usr/bin/redis-server"), &options);
        let same = input.is_some();
        Program {
            client: Some(Client { command, socket: socket.clone(), paths: paths.clone() }),
            same,
            input,
            ..server
        }
    };
    let load = "-q -n 40000 -P 16 -r 20000 -t set,get,incr,lpush,rpop,sadd,hset,lrange_100";
    programs.push(serve("redis", "redis-cli", &[], Some(folder.join("commands.redis"))));
    programs.push(serve("redis load", "redis-benchmark", &load.split(' ').collect::<Vec<_>>(), None));
    Ok(programs)
}

//! `numa`: the tests of the machine's nodes, on a Linux kernel in QEMU with two of them.
//!
//! The kernel is Debian's. Its file system is in memory: the test program, the libraries that it needs here, and busybox, which starts it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::gpu_bundle::{artifact, cargo, copy};
use crate::{Setup, child, firmware, progress, setup, vulkan};

/// MiB of each node.
const NODES: [u64; 2] = [384, 640];

/// A run takes some 20 seconds.
const LIMIT: Duration = Duration::from_secs(300);

/// The first program of the machine. All tests whose names tell of nodes run, one at a time, so that their lines are whole.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/tests nodes --nocapture --test-threads=1
/bin/busybox poweroff -f
";

/// Runs the tests, and prints what they print.
///
/// # Errors
/// The machine or its kernel cannot be had here, a test fails, or the tests have not seen both nodes.
pub fn run(setup: &Setup) -> Result<ExitCode> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "the kernel runs programs of Linux on x86-64 only"
    );
    let emulator = setup::provide("qemu-system-x86_64", false, setup)?;
    let unpacked = |packages: &[&str]| {
        setup::unpacked(packages[0], packages, setup)
            .with_context(|| format!("{} cannot be had here", packages[0]))
    };
    let kernel = kernel(&unpacked(&["linux-image-cloud-amd64", "linux-image-amd64"])?)?;
    let busybox = unpacked(&["busybox-static"])?.join("bin/busybox");
    let tests = cargo(firmware::root(), "test --no-run --package allotment --features std --test growing");
    let tests = artifact(tests, "growing")?;

    let machine = tempfile::tempdir()?;
    let initramfs = machine.path().join("initramfs");
    pack(&tests, &busybox, &machine.path().join("root"), &initramfs)?;
    let mut qemu = child::command(emulator);
    qemu.args("-nodefaults -display none -serial stdio -no-reboot -smp 2".split(' '));
    qemu.args(["-m", &format!("{}M", NODES.iter().sum::<u64>())]);
    for (n, size) in NODES.iter().enumerate() {
        qemu.args(["-object", &format!("memory-backend-ram,id=m{n},size={size}M")]);
        qemu.args(["-numa", &format!("node,nodeid={n},cpus={n},memdev=m{n}")]);
    }
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
    qemu.args(["-append", "console=ttyS0 loglevel=0 panic=-1"]);
    let progress = progress::show("running the tests on two nodes".into());
    let (status, text) = child::run_limited(&mut qemu, LIMIT)?;
    drop(progress);
    println!("{}", text.trim());
    let status = status.with_context(|| format!("the machine ran for more than {} s", LIMIT.as_secs()))?;
    ensure!(status.success(), "QEMU ended with {status}");
    let (passed, nodes) = (vulkan::passed(&text), nodes(&text));
    println!(
        "numa: {passed} tests passed; nodes, their MiB, and the processors that threads ran on: {nodes:?}"
    );
    ensure!(passed > 0, "a test failed");
    ensure!(are_right(&nodes), "the tests have not seen the nodes of {NODES:?} MiB with a processor each");
    Ok(ExitCode::SUCCESS)
}

/// The number of each node, its MiB, and how many processors a thread ran on, by what the tests print.
fn nodes(text: &str) -> Vec<[u64; 3]> {
    let numbers = |line: &str| {
        // The test's own name may stand before it.
        let (_, line) = line.rsplit_once("node ")?;
        let mut numbers = line.split([' ', ':']).filter_map(|word| word.parse().ok());
        Some([numbers.next()?, numbers.next()?, numbers.next()?])
    };
    text.lines().filter_map(numbers).collect()
}

/// Whether the nodes are those that were asked for. The kernel has some of the memory for itself.
fn are_right(nodes: &[[u64; 3]]) -> bool {
    let is_right = |(n, size): (u64, &u64)| {
        let is_it =
            |node: &[u64; 3]| node[0] == n && (size * 3 / 4..=*size).contains(&node[1]) && node[2] == 1;
        nodes.iter().filter(|node| is_it(node)).count() == 1
    };
    nodes.len() == NODES.len() && (0..).zip(&NODES).all(is_right)
}

/// The kernel among the files of its package.
fn kernel(folder: &Path) -> Result<PathBuf> {
    let boot = folder.join("boot");
    let files = fs::read_dir(&boot).with_context(|| format!("{} cannot be read", boot.display()))?;
    let mut files = files.filter_map(Result::ok).map(|file| file.path());
    let is_kernel =
        |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"));
    files.find(is_kernel).with_context(|| format!("{} has no kernel", boot.display()))
}

/// Packs the programs and their libraries as the machine's file system.
fn pack(tests: &Path, busybox: &Path, root: &Path, initramfs: &Path) -> Result<()> {
    let libraries = child::stdout_of(child::command("ldd").arg(tests))?;
    let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new);
    let place = |to: &Path| root.join(to.strip_prefix("/").unwrap_or(to));
    let programs = [(busybox, Path::new("bin/busybox")), (tests, Path::new("tests"))];
    for (from, to) in libraries.map(|file| (file, file)).chain(programs) {
        let to = place(to);
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        copy(from, &to)?;
    }
    fs::create_dir(root.join("proc"))?;
    fs::create_dir(root.join("sys"))?;
    fs::write(root.join("init"), INIT)?;
    setup::make_executable(&root.join("init"))?;
    let cpio = "find . | \"$0\" cpio -o -H newc >\"$1\"";
    let mut shell = child::command("sh");
    shell.current_dir(root).args(["-c", cpio]).arg(busybox).arg(initramfs);
    child::run(&mut shell, "packing the tests")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_and_compared() {
        let text = "running 1 test\ntest nodes::of_a_node ... node 0: 330 MiB, ran on 1 of its processors\r\nnode 1: 629 MiB, ran on 1 of its processors\n";
        let seen = nodes(text);
        assert_eq!(seen, [[0, 330, 1], [1, 629, 1]]);
        assert!(are_right(&seen) && !are_right(&seen[1..]));
        assert!(!are_right(&[[0, 330, 1], [1, 641, 1]]) && !are_right(&[[0, 330, 1], [1, 629, 0]]));
    }
}

//! Readings of memory pressure, from made-up files and from the real ones, which are only read.

use allotment::lock::Unsync;
use allotment::os::pressure::{Group, Reading, Stall, Watch};
use allotment::pressure::Pressure::{Critical, Low, Normal};
use allotment::pressure::{PressureHeap, Transition};
use allotment::{Heap, Tlsf};
use std::cell::RefCell;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

/// A folder that stands in for the root of a system.
struct System(PathBuf);

impl System {
    fn new(name: &str) -> Self {
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    fn write(&self, file: &str, text: &str) -> &Self {
        let file = self.0.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        self
    }

    fn stalls(&self, some: &str, full: &str) -> &Self {
        let line = |kind, avg| format!("{kind} avg10={avg} avg60=1.50 avg300=0.25 total=1234567\n");
        self.write("proc/pressure/memory", &(line("some", some) + &line("full", full)))
    }

    fn group(&self, path: &str, current: u64, max: &str, high: &str, inactive: u64) -> &Self {
        let folder = format!("sys/fs/cgroup{path}");
        self.write(&format!("{folder}/memory.current"), &format!("{current}\n"));
        self.write(&format!("{folder}/memory.max"), &format!("{max}\n"));
        self.write(&format!("{folder}/memory.high"), &format!("{high}\n"));
        let stat =
            format!("anon 1000\nfile 5000\ninactive_anon 7\ninactive_file {inactive}\nactive_file 1\n");
        self.write(&format!("{folder}/memory.stat"), &stat)
    }

    fn in_group(&self, path: &str) -> &Self {
        self.write("proc/self/cgroup", &format!("0::{path}\n"))
    }

    fn watch(&self) -> Watch {
        Watch::at(&self.0)
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn stalls_are_read() {
    let system = System::new("stalls");
    system.stalls("12.34", "0.50");
    let Reading { some: Some(some), full: Some(full), group: None } = system.watch().read().unwrap() else {
        panic!()
    };
    assert_eq!((some.avg10, full.avg10), (12.34, 0.5));
    assert_eq!((some.avg60, some.avg300), (1.5, 0.25));
    assert_eq!(full.total, Duration::from_micros(1_234_567));
    // Early kernels have no second line, and later ones may have more figures.
    system.write("proc/pressure/memory", "some avg10=3.00 avg60=0.00 avg300=0.00 total=9 new=1\n");
    let reading = system.watch().read().unwrap();
    assert_eq!((reading.some.unwrap().avg10, reading.full), (3.0, Some(Stall::default())));
}

#[test]
fn the_tightest_group_counts() {
    let system = System::new("groups");
    system.in_group("/user/app");
    system.group("/user/app", 600, "10000", "max", 100);
    system.group("/user", 9_000, "10000", "max", 0);
    let group = |limit, used| Some(Group { limit, used });
    assert_eq!(system.watch().read().unwrap().group, group(10_000, 9_000), "the parent is tighter");
    system.group("/user", 9_000, "10000", "max", 8_900);
    assert_eq!(system.watch().read().unwrap().group, group(10_000, 500), "cached files do not count");
    system.group("/user/app", 600, "10000", "700", 0);
    assert_eq!(system.watch().read().unwrap().group, group(700, 600), "what slows down is a limit");
    system.group("/user/app", 600, "max", "max", 0).group("/user", 9_000, "max", "max", 0);
    assert_eq!(system.watch().read().unwrap().group, None);
    // A group that does not exist, as after a move, and what a container sees of the tree.
    system.in_group("/gone").group("", 5, "10", "max", 0);
    assert_eq!(system.watch().read().unwrap().group, group(10, 5));
    system.in_group("/../../elsewhere");
    assert_eq!(system.watch().read().unwrap().group, group(10, 5));
    system.write("proc/self/cgroup", "4:memory:/old\n0::/user/app\n");
    assert_eq!(system.watch().read().unwrap().group, group(10, 5), "the older version's line is passed over");
    // Systems with both versions have one more folder.
    system.in_group("/app").group("/unified/app", 3, "7", "max", 0);
    assert_eq!(system.watch().read().unwrap().group, group(7, 3));
    system.write("sys/fs/cgroup/cgroup.controllers", "memory\n");
    assert_eq!(system.watch().read().unwrap().group, group(10, 5));
}

/// Swap on a disk is room that is left; swap in compressed memory is not.
#[test]
fn the_machine_counts_with_its_swap() {
    let system = System::new("machine");
    let memory =
        "MemTotal:        1000 kB\nMemFree:           10 kB\nMemAvailable:     200 kB\nSwapFree: 9 kB\n";
    system.write("proc/meminfo", memory);
    let group = || system.watch().read().unwrap().group.unwrap();
    let kind = || system.watch().read().err().map(|error| error.kind());
    assert_eq!(group(), Group { limit: 1000 << 10, used: 800 << 10 });
    let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
    let zram = "/dev/block/zram0                        partition\t2000\t\t1500\t\t100\n";
    system.write("proc/swaps", &(head.to_owned() + zram));
    assert_eq!(group(), Group { limit: 1000 << 10, used: 800 << 10 });
    let disk = "/dev/sda2                               partition\t3000\t\t1000\t\t-2\n";
    system.write("proc/swaps", &(head.to_owned() + zram + disk));
    assert_eq!(group(), Group { limit: 4000 << 10, used: 1800 << 10 });
    assert_eq!(group().left(), 55.0);
    // A group that has less left counts instead, and one that has more does not.
    system.in_group("/one").group("/one", 900_000, "1000000", "max", 0);
    assert_eq!(group(), Group { limit: 1_000_000, used: 900_000 });
    system.group("/one", 10, "10000000000", "max", 0);
    assert_eq!(group().limit, 4000 << 10);
    for wrong in ["/dev/sda2 partition\t3000\n", "/dev/sda2 partition\tx\t1\t-2\n"] {
        system.write("proc/swaps", &(head.to_owned() + wrong));
        assert_eq!(kind(), Some(ErrorKind::InvalidData), "{wrong}");
    }
    system.write("proc/swaps", head).write("proc/meminfo", &memory.replace("200 kB", "much"));
    assert_eq!(kind(), Some(ErrorKind::InvalidData));
    // More available than there is, as nothing promises that it is not.
    system.write("proc/meminfo", &memory.replace(" 200 kB", "2000 kB"));
    assert_eq!(group().left(), group().left().min(100.0));
}

#[test]
fn what_is_wrong_is_said() {
    let system = System::new("wrong");
    let kind = || system.watch().read().err().map(|error| error.kind());
    assert_eq!(kind(), Some(ErrorKind::Unsupported));
    system.write("proc/self/cgroup", "4:memory:/old\n");
    assert_eq!(kind(), Some(ErrorKind::Unsupported), "the older version alone");
    for text in [
        "",
        "some\n",
        "some avg10=x avg60=0 avg300=0 total=0\n",
        "some avg10=1 avg60=0 avg300=0\n",
        "some avg10=nan avg60=0 avg300=0 total=0\n",
        "some avg10=-1 avg60=0 avg300=0 total=0\n",
        "some avg10=101 avg60=0 avg300=0 total=0\n",
        "full avg10=1 avg60=0 avg300=0 total=0\n",
        "more avg10=1 avg60=0 avg300=0 total=0\n",
    ] {
        system.write("proc/pressure/memory", text);
        let error = system.watch().read().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{text:?}: {error}");
        assert!(error.to_string().contains("proc/pressure/memory"), "{error}");
    }
    system.stalls("0.00", "0.00").in_group("/app");
    for (current, max) in [("some", "max"), ("-1", "max"), ("5", "much"), ("5", "")] {
        system.write("sys/fs/cgroup/app/memory.current", current);
        system.write("sys/fs/cgroup/app/memory.max", max);
        let error = system.watch().read().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{current} {max}: {error}");
    }
    fs::remove_file(system.0.join("proc/pressure/memory")).unwrap();
    fs::create_dir(system.0.join("proc/pressure/memory")).unwrap();
    let error = system.watch().read().unwrap_err();
    assert!(error.to_string().contains("memory cannot be read: "), "{error}");
}

#[test]
fn thresholds_have_hysteresis() {
    let thresholds = Watch::system();
    let stall = |some, full| {
        let stall = |avg10| Some(Stall { avg10, ..Stall::default() });
        Reading { some: stall(some), full: stall(full), group: None }
    };
    let left =
        |left: u64| Reading { some: None, full: None, group: Some(Group { limit: 1000, used: 1000 - left }) };
    let mut now = Normal;
    for (reading, expected) in [
        (stall(9.9, 0.0), Normal),
        (stall(10.0, 0.0), Low),
        (stall(8.1, 0.0), Low),
        (stall(7.9, 0.0), Normal),
        (stall(50.0, 4.9), Low),
        (stall(50.0, 5.0), Critical),
        (stall(50.0, 4.1), Critical),
        (stall(50.0, 3.9), Low),
        (left(500), Normal),
        (left(100), Normal),
        (left(99), Low),
        (left(119), Low),
        (left(121), Normal),
        (left(29), Critical),
        (left(35), Critical),
        (left(37), Low),
        (left(0), Critical),
        (Reading::default(), Normal),
    ] {
        now = thresholds.next(now, &reading);
        assert_eq!(now, expected, "{reading:?}");
    }
    let exceeded = Group { limit: 10, used: 20 };
    assert_eq!((exceeded.left(), Group { limit: 0, used: 0 }.left()), (0.0, 0.0));
}

thread_local! {
    static SEEN: RefCell<Vec<Transition>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_heap_is_told() {
    let heap: PressureHeap<Tlsf, Unsync> = PressureHeap::new(Heap::empty())
        .on_transition(&|transition| SEEN.with_borrow_mut(|seen| seen.push(transition)));
    let system = System::new("told");
    let mut watch = system.watch();
    system.stalls("20.00", "0.00");
    assert_eq!((watch.poll(&heap).unwrap(), heap.pressure()), (Low, Low));
    system.stalls("20.00", "6.00");
    assert_eq!((watch.poll(&heap).unwrap(), heap.pressure()), (Critical, Critical));
    system.write("proc/pressure/memory", "nonsense");
    assert!(watch.poll(&heap).is_err());
    assert_eq!((watch.pressure(), heap.pressure()), (Critical, Critical), "the last state stays");
    system.stalls("0.00", "0.00");
    assert_eq!((watch.poll(&heap).unwrap(), heap.pressure()), (Normal, Normal));
    let seen: Vec<_> = SEEN.take().iter().map(|transition| (transition.from, transition.to)).collect();
    assert_eq!(seen, [(Normal, Low), (Low, Critical), (Critical, Normal)]);
    let mut strict = system.watch();
    (strict.low_stall, strict.critical_stall) = (0.0, 0.0);
    assert_eq!(strict.poll(&heap).unwrap(), Normal, "no stall is no pressure");
}

/// Whatever this system offers can be read.
#[test]
fn the_real_files_are_understood() {
    let offered = fs::read_to_string("/proc/pressure/memory").is_ok();
    match Watch::system().read() {
        Ok(reading) => {
            assert_eq!(reading.some.is_some(), offered);
            if let Some(group) = reading.group {
                assert!(group.used > 0 && group.limit > 0, "{group:?}");
            }
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => assert!(!offered),
        Err(error) => panic!("{error}"),
    }
}

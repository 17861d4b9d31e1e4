//! Nodes of made-up machines, and zones that prefer the caller's.

use allotment::os::numa::nodes_at;
use allotment::region::Capabilities;
use allotment::zones::{Zone, Zones};
use allotment::{Heap, Region, Tlsf, lock::Futex};
use std::alloc::Layout;
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

/// A folder that stands in for the root of a system with nodes.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        for (file, text) in files {
            let file = root.join("sys/devices/system/node").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        Self(root)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn nodes_are_read_from_a_made_up_machine() {
    let machine = Machine::new(
        "three-nodes",
        &[
            ("online", "0-1,4\n"),
            ("node0/cpulist", "0-2,8\n"),
            (
                "node0/meminfo",
                "Node 0 MemTotal:       2048 kB\nNode 0 MemFree:  1024 kB\nNode 0 MemUsed: 9 kB\n",
            ),
            ("node0/distance", "10 21 17\n"),
            ("node1/cpulist", "3\n"),
            ("node1/meminfo", "Node 1 MemTotal: 4 kB\nNode 1 MemFree: 0 kB\n"),
            ("node1/distance", "21 10 28\n"),
            // Memory of a device: no processor.
            ("node4/cpulist", "\n"),
            ("node4/meminfo", "Node 4 MemTotal: 16 kB\n"),
            ("node4/distance", "17 28 10\n"),
        ],
    );
    let nodes = nodes_at(&machine.0).unwrap();
    assert_eq!(nodes.iter().map(|node| node.number).collect::<Vec<_>>(), [0, 1, 4]);
    assert_eq!(
        nodes.iter().map(|node| (node.memory, node.free)).collect::<Vec<_>>(),
        [(2 << 20, 1 << 20), (4096, 0), (16 << 10, 0)]
    );
    assert_eq!(nodes[0].processors, [0, 1, 2, 8]);
    assert_eq!((&*nodes[1].processors, nodes[2].processors.len()), (&[3][..], 0));
    assert_eq!(nodes[2].distances, [17, 28, 10]);
}

#[test]
fn what_is_no_list_of_nodes_is_an_error() {
    let none = Machine::new("no-nodes", &[]);
    assert_eq!(nodes_at(&none.0).unwrap(), []);
    for (name, files) in [
        ("word", &[("online", "all\n")][..]),
        ("endless", &[("online", "0-4294967295\n")]),
        ("processors", &[("online", "0\n"), ("node0/cpulist", "0-x\n")]),
        ("memory", &[("online", "0\n"), ("node0/meminfo", "Node 0 MemTotal: much kB\n")]),
        ("distance", &[("online", "0\n"), ("node0/distance", "10 far\n")]),
    ] {
        let machine = Machine::new(name, files);
        assert!(
            nodes_at(&machine.0).is_err_and(|error| error.kind() == std::io::ErrorKind::InvalidData),
            "{name}"
        );
    }
}

thread_local! {
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Zones begin with that of the caller's node, if it satisfies the request; the others come after it, as ever.
#[test]
fn the_zone_of_the_callers_node_comes_first() {
    let heaps: [Heap<Tlsf, Futex>; 3] = std::array::from_fn(|_| {
        let heap = Heap::empty();
        // SAFETY: the memory is leaked, and only this heap uses it.
        unsafe { heap.claim(Region::new(vec![0_u64; 1024].leak().as_mut_ptr(), 8192)) }.unwrap();
        heap
    });
    let zone = |n: usize| Zone::new("node", &heaps[n], Capabilities::empty());
    let zones: Zones<3, 8, Futex> =
        Zones::new([zone(0), zone(1), zone(2).up_to(1000)]).fallback(&[2]).nearest(&|| HERE.get());
    let chosen = |here: usize, size: usize| {
        HERE.set(here);
        let block = zones.allocate(Layout::from_size_align(size, 8).unwrap(), Capabilities::empty()).unwrap();
        zones.zone_of(block.cast()).unwrap()
    };
    assert_eq!([0, 1, 2, 3].map(|here| chosen(here, 100)), [0, 1, 2, 0]);
    assert_eq!(chosen(2, 2000), 0, "its rules do not match");
    assert_eq!([1, 1, 1, 1].map(|here| chosen(here, 3000)), [1, 1, 0, 2], "full ones are passed over");
}

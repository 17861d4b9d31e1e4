//! The nodes of the machine that the tests run on, by the kernel's own word. `cargo xtask numa` runs them on a machine with two.

use crate::alone;
use allotment::lock::Futex;
use allotment::os::Mapping;
use allotment::os::numa::{Node, current, nodes};
use allotment::region::Capabilities;
use allotment::zones::{Zone, Zones};
use allotment::{Heap, Region, Tlsf};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::thread;

const SIZE: usize = 1 << 20;

/// Nodes with memory that this process may use, and a populated mapping on each.
fn mapped() -> Vec<(Node, Region)> {
    let nodes: Vec<Node> = nodes().unwrap().into_iter().filter(|node| node.memory > 0).collect();
    let map = |node: &Node| Some((node.clone(), Mapping::new(SIZE).node(node.number).populate().map().ok()?));
    let mapped: Vec<_> = nodes.iter().filter_map(map).collect();
    assert!(!mapped.is_empty() || nodes.is_empty(), "a process may use one node at least");
    mapped
}

fn unmap(region: Region) {
    // SAFETY: nothing uses the mapping any more.
    unsafe { Mapping::unmap(region) }.unwrap();
}

/// The node of the page that an address is in.
fn node_of(address: NonNull<u8>) -> u32 {
    /// The kernel's numbers, which the crate `libc` lacks: the node, of an address.
    const MPOL_F_NODE_ADDR: i32 = 1 | 2;
    let mut node = -1_i32;
    let (mask, bits) = (std::ptr::null_mut::<usize>(), 0_usize);
    // SAFETY: the place is valid for a write, and the kernel writes to no other.
    let result = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, mask, bits, address.as_ptr(), MPOL_F_NODE_ADDR)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    node.try_into().unwrap()
}

/// The nodes of all pages of a region.
fn nodes_of(region: Region) -> impl Iterator<Item = u32> {
    // SAFETY: the offset is in the region.
    (0..region.size).step_by(4096).map(move |offset| node_of(unsafe { region.start.add(offset) }))
}

/// Lets this thread run on one processor only. Returns false if the process may not run there.
fn pin(processor: u32) -> bool {
    // SAFETY: all zero is a set without processors, and the kernel only reads the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    }
}

/// What this machine says agrees with itself: the thread runs on a node with processors and memory.
#[test]
fn this_machine_has_the_node_that_the_thread_runs_on() {
    let (nodes, current) = (nodes().unwrap(), current().unwrap());
    if let Some(node) = nodes.iter().find(|node| node.number == current) {
        assert!(!node.processors.is_empty() && node.memory > 0 && node.memory >= node.free, "{node:?}");
        assert_eq!((node.distances.len(), node.distances.iter().min()), (nodes.len(), Some(&10)));
    } else {
        // A kernel without nodes.
        assert_eq!((nodes.len(), current), (0, 0));
    }
}

#[test]
fn pages_lie_on_the_nodes_that_were_asked_for() {
    let _alone = alone();
    let mapped = mapped();
    for (node, region) in &mapped {
        assert!(nodes_of(*region).all(|number| number == node.number), "{node:?}");
        unmap(*region);
    }
    let numbers: Vec<u32> = mapped.iter().map(|(node, _)| node.number).collect();
    if !numbers.is_empty() {
        let region = Mapping::new(SIZE).interleave(&numbers).populate().map().unwrap();
        let pages: Vec<u32> = nodes_of(region).collect();
        for number in numbers.iter() {
            let share = pages.iter().filter(|page| *page == number).count();
            assert!(share.abs_diff(pages.len() / numbers.len()) <= 1, "{share} pages on node {number}");
        }
        unmap(region);
    }
}

/// On each processor, blocks come from the node that it belongs to.
#[test]
fn zones_have_memory_of_the_processors_node() {
    let _alone = alone();
    let mapped = mapped();
    let heaps: [Heap<Tlsf, Futex>; 2] = std::array::from_fn(|_| Heap::empty());
    for (heap, (_, region)) in heaps.iter().zip(&mapped) {
        // SAFETY: the mapping is new, and goes back after the last use of the heap.
        unsafe { heap.claim(*region) }.unwrap();
    }
    let numbers: Vec<_> = mapped.iter().map(|(node, _)| Some(node.number)).collect();
    let place = || numbers.iter().position(|number| *number == current()).unwrap_or(usize::MAX);
    let zones: Zones<2, 8, Futex> =
        Zones::new([0, 1].map(|n| Zone::new("node", &heaps[n], Capabilities::empty()))).nearest(&place);
    let node_here = || {
        let layout = Layout::from_size_align(4096, 8).unwrap();
        let block = zones.allocate(layout, Capabilities::empty()).unwrap();
        node_of(block.cast())
    };
    for (node, _) in mapped.iter().take(heaps.len()) {
        let on = |&processor: &u32| {
            thread::scope(|scope| {
                let thread = scope.spawn(|| pin(processor).then(|| (current(), node_here())));
                let seen = thread.join().unwrap();
                let expected = seen.map(|_| (Some(node.number), node.number));
                assert_eq!(seen, expected, "on processor {processor}");
                seen.is_some()
            })
        };
        let ran = node.processors.iter().filter(|processor| on(processor)).count();
        println!("node {}: {} MiB, ran on {ran} of its processors", node.number, node.memory >> 20);
    }
    mapped.into_iter().for_each(|(_, region)| unmap(region));
}

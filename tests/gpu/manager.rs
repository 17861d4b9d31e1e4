//! The memory of all devices and of the host behind one front.

use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::driver::sys;
use allotment::gpu::manager::{Access, ManagerOptions, MemoryManager, MemoryRequest, Usage};
use allotment::gpu::{Buffer, Context, DeviceMemory, Error, MemoryKind, Pool, Stream, pinned_bytes};
use allotment::pool::{Direction, PoolError, PoolOptions, SourceErrorKind, Stream as _};

const MIB: usize = 1 << 20;

fn manager(gpu: &Gpu) -> MemoryManager {
    MemoryManager::new(std::slice::from_ref(&gpu.context), ManagerOptions::default()).unwrap()
}

fn bytes<'m>(request: &MemoryRequest<'m>, len: usize, gpu: &Gpu) -> Buffer<u8> {
    Buffer::zeros(request, len, &gpu.stream).unwrap()
}

#[test]
fn the_table_decides() {
    let gpu = Gpu::new();
    let manager = manager(&gpu);
    let cases = [
        (None, Access::Unknown, 64 << 10, MemoryKind::Pinned),
        (None, Access::Unknown, (64 << 10) + 1, MemoryKind::Device),
        (None, Access::Random, 16, MemoryKind::Device),
        (None, Access::WriteOnce, 16, MemoryKind::Device),
        (None, Access::HostHeavy, MIB, MemoryKind::Pinned),
        (None, Access::Streaming, MIB, MemoryKind::Pinned),
        (None, Access::ReadOnly, MIB, MemoryKind::ReadMostly),
        (Some(MemoryKind::ReadMostly), Access::Unknown, 16, MemoryKind::ReadMostly),
        (Some(MemoryKind::Device), Access::HostHeavy, 16, MemoryKind::Device),
        (Some(MemoryKind::Managed), Access::Unknown, 16, MemoryKind::Managed),
        (Some(MemoryKind::Pinned), Access::Random, MIB, MemoryKind::Pinned),
        (Some(MemoryKind::Host), Access::Random, MIB, MemoryKind::Host),
    ];
    for (named, access, len, target) in cases {
        let mut buffer = manager.allocate::<u8>(len, named, access).unwrap();
        assert_eq!(buffer.kind(), target, "{named:?} {access:?} {len}");
        // The other kinds are of the host, or of both.
        assert_eq!(buffer.device(), (target == MemoryKind::Device).then_some(0), "{target:?}");
        assert!(buffer.to_vec().unwrap().iter().all(|&value| value == 0));
        buffer.slice_mut(len - 1..).unwrap().fill(9).unwrap();
        assert_eq!(buffer.to_vec().unwrap().last(), Some(&9));
        // The CPU can access everything but the device's own memory.
        match buffer.as_mut_slice() {
            Ok(values) => values[0] = 7,
            Err(error) => assert_eq!((error, target), (Error::Invisible, MemoryKind::Device)),
        }
        let visible = buffer.as_slice().map(|values| values[0]);
        assert_eq!(visible.is_ok(), target != MemoryKind::Device);
        assert_eq!(buffer.slice(..1).unwrap().to_vec().unwrap()[0], visible.unwrap_or(0));
    }
    drop(manager);
    gpu.finish();
}

#[test]
fn the_table_can_be_replaced() {
    let gpu = Gpu::new();
    let rule = |access: &[Access], up_to, target| (access.to_vec(), up_to, vec![target]);
    let with = |rules| ManagerOptions { rules, ..ManagerOptions::default() };
    let make = |options| MemoryManager::new(std::slice::from_ref(&gpu.context), options);
    let table = with(vec![
        rule(&[Access::Random], Some(1000), MemoryKind::Host),
        rule(&[], None, MemoryKind::Managed),
    ]);
    let manager = make(table).unwrap();
    for (access, len, target) in [
        (Access::Random, 1000, MemoryKind::Host),
        (Access::Random, 1001, MemoryKind::Managed),
        (Access::Unknown, 1, MemoryKind::Managed),
        (Access::ReadOnly, 1, MemoryKind::Managed),
    ] {
        let request = manager.request().access(access);
        assert_eq!(request.targets(len), [target]);
        assert_eq!(bytes(&request, len, &gpu).kind(), target);
    }
    drop(manager);
    let wrong = |policy| match make(policy) {
        Err(error) => error,
        Ok(_) => panic!("it was accepted"),
    };
    assert_eq!(wrong(with(vec![])), Error::PolicyNotTotal);
    assert_eq!(wrong(with(vec![rule(&[], Some(1 << 40), MemoryKind::Host)])), Error::PolicyNotTotal);
    assert_eq!(wrong(with(vec![rule(&[Access::Random], None, MemoryKind::Host)])), Error::PolicyNotTotal);
    let empty = (vec![Access::Random], None, vec![]);
    assert_eq!(wrong(with(vec![empty, rule(&[], None, MemoryKind::Host)])), Error::PolicyNoTarget(0));
    for share in [0.5, 1.1, f64::NAN] {
        assert_eq!(wrong(ManagerOptions { share, ..ManagerOptions::default() }), Error::PolicyShare);
    }
    assert_eq!(MemoryManager::new(&[], ManagerOptions::default()).err(), Some(Error::NoContext));
    gpu.finish();
}

/// Each pool is full in turn: a request that does not fit goes to the next allowed kind of memory, and nowhere
/// else.
#[test]
fn full_places_fall_back_as_far_as_allowed() {
    let gpu = Gpu::new();
    let limited = |mib: usize| PoolOptions::new().limit(mib * MIB).exact_above(MIB, MIB);
    let options = ManagerOptions {
        device: limited(8),
        managed: limited(8),
        pinned: limited(8),
        host: limited(8),
        ..ManagerOptions::default()
    };
    let manager = MemoryManager::new(std::slice::from_ref(&gpu.context), options).unwrap();
    let any = manager.request().access(Access::Random);
    let held: Vec<_> = (0..4).map(|_| bytes(&any, 6 * MIB, &gpu)).collect();
    let targets: Vec<_> = held.iter().map(|buffer| buffer.kind()).collect();
    assert_eq!(targets, [MemoryKind::Device, MemoryKind::Managed, MemoryKind::Pinned, MemoryKind::Host]);
    let full = |request: &MemoryRequest<'_>| match Buffer::<u8>::zeros(request, 6 * MIB, &gpu.stream) {
        Err(Error::Pool(PoolError::OutOfMemory(full))) => full,
        other => panic!("{other:?}"),
    };
    let error = full(&any);
    assert_eq!((error.requested, error.pools.len()), (6 * MIB, 4));
    let device_only = manager.request().memory(MemoryKind::Device);
    assert_eq!(full(&device_only).pools.len(), 1);
    let two = device_only.clone().fallback(&[MemoryKind::Pinned, MemoryKind::Device, MemoryKind::Pinned]);
    assert_eq!(two.targets(1), [MemoryKind::Device, MemoryKind::Pinned]);
    assert_eq!(full(&two).pools.len(), 2);
    assert_eq!(full(&any.clone().fallback(&[])).pools.len(), 1);
    // Freed room is used again.
    drop(held.into_iter().nth(2));
    assert_eq!(bytes(&two, 6 * MIB, &gpu).kind(), MemoryKind::Device);
    assert_eq!(manager.stats().blocks.current, 0);
    drop(manager);
    gpu.finish();
}

#[test]
fn what_a_device_lacks_is_a_typed_error_or_passed_over() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let concurrent = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
    let mapping = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    gpu.control().set_attribute(1, concurrent as u32, 0);
    gpu.control().set_attribute(1, mapping as u32, 0);
    let second = Context::new(1).unwrap();
    let both = MemoryManager::new(&[gpu.context.clone(), second.clone()], ManagerOptions::default()).unwrap();
    let streams: Vec<_> = both.streams().cloned().collect();
    let (managed, read_only) =
        (both.request().memory(MemoryKind::Managed), both.request().access(Access::ReadOnly));
    let on = |request, stream| {
        let made = Buffer::<u8>::zeros(request, 100, stream);
        made.map(|buffer| (buffer.kind(), buffer.as_view().address() >= (1 << 48) + (1 << 44)))
    };
    assert_eq!(on(&managed, &streams[0]), Ok((MemoryKind::Managed, false)));
    let lacks = Error::Unavailable(MemoryKind::Managed);
    assert_eq!(on(&managed, &streams[1]), Err(lacks));
    assert_eq!(on(&read_only, &streams[1]), Ok((MemoryKind::Device, true)));
    // A stream of one manager with memory of another.
    let one = manager(&gpu);
    let error = Buffer::<u8>::zeros(&one.request(), 100, &streams[1]).unwrap_err();
    assert_eq!(error, Error::OtherDevice { ordinal: 1 });
    drop((managed, read_only));
    drop((one, streams, both, second));
    gpu.finish();
}

#[test]
fn read_only_memory_is_advised_so_and_kept_apart() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let manager = manager(&gpu);
    let table = bytes(&manager.request().access(Access::ReadOnly), 1000, &gpu);
    let plain = bytes(&manager.request().memory(MemoryKind::Managed), 1000, &gpu);
    let advised = |buffer: &Buffer<u8>| {
        let mut value = 0i32;
        let which = sys::CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
        // SAFETY: the output has the attribute's size, and the range is that of the buffer.
        let code = gpu.context.bind(|| unsafe {
            sys::cuMemRangeGetAttribute((&raw mut value).cast(), 4, which, buffer.address(), 1000)
        });
        code.unwrap().result().unwrap();
        value
    };
    assert_eq!((advised(&table), advised(&plain)), (1, 0));
    drop((table, plain));
    // A failure gives the block back.
    for name in ["cuMemAdvise", "cuMemAdvise_v2"] {
        gpu.control().fail(name, 1, 1, 999);
    }
    let failed =
        Buffer::<u8>::zeros(&manager.request().access(Access::ReadOnly), 10, &gpu.stream).unwrap_err();
    assert!(matches!(failed, Error::Call(_)), "{failed:?}");
    assert_eq!(manager.stats().blocks.current, 0);
    gpu.control().clear_failures();
    drop(manager);
    gpu.finish();
}

/// Buffers that are used unsuitably for their memory are listed, and the next request of the same call site goes to
/// suitable memory.
#[test]
fn measured_accesses_revise_the_table() {
    let gpu = Gpu::new();
    let manager = manager(&gpu);
    fn polled(manager: &MemoryManager) -> Buffer<u32> {
        manager.allocate(MIB, None, Access::Unknown).unwrap()
    }
    fn small(manager: &MemoryManager) -> Buffer<u32> {
        manager.allocate(16, None, Access::Unknown).unwrap()
    }
    let flags = polled(&manager);
    let mut kernel = small(&manager);
    assert_eq!(flags.kind(), MemoryKind::Device);
    assert_eq!(kernel.kind(), MemoryKind::Pinned);
    assert_eq!(manager.recommendations(), []);
    for _ in 0..40 {
        flags.slice(..1).unwrap().to_vec().unwrap();
        kernel.as_view_mut().fill(1).unwrap();
    }
    let usage = flags.usage().unwrap();
    assert_eq!((usage.to_host, usage.host_bytes, usage.on_device), (40, 160, 1));
    let [first, second] = manager.recommendations().try_into().unwrap();
    assert_eq!(
        (first.from, first.to, first.measured),
        (MemoryKind::Device, MemoryKind::Pinned, Access::HostHeavy)
    );
    assert_eq!((first.address as u64, first.bytes, first.usage), (flags.address(), 4 * MIB, usage));
    assert_eq!(
        (second.from, second.to, second.measured),
        (MemoryKind::Pinned, MemoryKind::Device, Access::Random)
    );
    assert!(first.site.file().ends_with("manager.rs"));
    let text = first.to_string();
    assert!(
        text.contains("4194304 bytes in device memory belong in pinned memory: 40 accesses by the host, 1"),
        "{text}"
    );
    assert!(manager.request().targets(4 * MIB)[0] == MemoryKind::Device, "another place in the program");
    // The next requests.
    let (next, last) = (polled(&manager), small(&manager));
    assert_eq!((next.kind(), last.kind()), (MemoryKind::Pinned, MemoryKind::Device));
    assert_eq!(manager.allocate::<u8>(MIB, None, Access::Unknown).unwrap().kind(), MemoryKind::Device);
    // Existing buffers can be moved.
    let request = manager.request().memory(MemoryKind::Pinned);
    let moved = flags.migrate(&request, &gpu.stream).unwrap();
    // Its first own access is that of the device, which wrote it.
    assert_eq!((moved.kind(), moved.usage().unwrap().on_device), (MemoryKind::Pinned, 1));
    assert_eq!(manager.recommendations().len(), 1);
    drop((next, last, moved, kernel));
    assert_eq!(manager.recommendations(), []);
    drop(manager);

    // No revision if the user does not want it.
    let options = ManagerOptions { revise: false, ..ManagerOptions::default() };
    let manager = MemoryManager::new(std::slice::from_ref(&gpu.context), options).unwrap();
    let flags = polled(&manager);
    for _ in 0..40 {
        flags.slice(..1).unwrap().to_vec().unwrap();
    }
    assert_eq!(manager.recommendations().len(), 1);
    assert_eq!(polled(&manager).kind(), MemoryKind::Device);
    drop(flags);
    drop(manager);
    gpu.finish();
}

#[test]
fn read_only_memory_that_is_changed_is_named() {
    let gpu = Gpu::new();
    let manager = manager(&gpu);
    let request = manager.request().access(Access::ReadOnly);
    let read = bytes(&request, 1000, &gpu);
    let mut changed = bytes(&request, 1000, &gpu);
    for number in 0..40 {
        read.as_slice().unwrap();
        changed.copy_from(&[number; 1000]).unwrap();
    }
    let [only] = manager.recommendations().try_into().unwrap();
    assert_eq!(only.address as u64, changed.address());
    assert_eq!((only.declared, only.measured), (Access::ReadOnly, Access::HostHeavy));
    assert_eq!((only.from, only.to), (MemoryKind::ReadMostly, MemoryKind::Pinned));
    assert!(only.to_string().ends_with("declared read-only, but changed 40 times"), "{only}");
    (0..7).for_each(|number| changed.as_mut_slice().unwrap()[0] = number);
    let text = manager.recommendations()[0].to_string();
    assert!(text.ends_with("declared read-only, but changed 47 times"), "{text}");
    drop((read, changed));
    drop(manager);
    gpu.finish();
}

#[test]
fn the_device_with_most_room_is_chosen() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = Context::new(1).unwrap();
    let contexts = [gpu.context.clone(), second.clone()];
    let manager = MemoryManager::new(&contexts, ManagerOptions::default()).unwrap();
    let streams: Vec<_> = manager.streams().cloned().collect();
    let request = manager.request().memory(MemoryKind::Device);
    for (full, other) in [(0, 1), (1, 0)] {
        let pool = Pool::new(DeviceMemory::new(&contexts[full]), PoolOptions::new()).unwrap();
        let held: Buffer<u8> = Buffer::zeros(&pool, 64 * MIB, &streams[full]).unwrap();
        let found = manager.allocate::<u8>(MIB, MemoryKind::Device, Access::Unknown).unwrap();
        assert_eq!((held.device(), found.device()), (Some(full), Some(other)));
        drop((found, held, pool));
        // Memory that a pool keeps is room as well.
        assert_eq!(Buffer::<u8>::zeros(&request, MIB, &streams[full]).unwrap().device(), Some(full));
        manager.cleanup();
    }
    drop((manager, streams, contexts, second));
    gpu.finish();
}

#[test]
fn totals_and_cleanup_are_of_all_devices() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = Context::new(1).unwrap();
    let contexts = [gpu.context.clone(), second.clone()];
    let manager = MemoryManager::new(&contexts, ManagerOptions::default()).unwrap();
    let streams: Vec<_> = manager.streams().cloned().collect();
    let mut held = Vec::new();
    for stream in &streams {
        for kind in [MemoryKind::Device, MemoryKind::Managed, MemoryKind::Pinned, MemoryKind::Host] {
            let request = manager.request().memory(kind);
            held.push(Buffer::from_slice(&request, &[1u32; 1000], stream).unwrap());
        }
    }
    let stats = manager.stats();
    let (requested, allocated) = (stats.requested.current, stats.allocated.current);
    assert_eq!((stats.blocks.current, requested, allocated), (8, 32_000, 8 * 4096));
    let pools = manager.pools();
    let reserved = |kind| {
        let of_kind = pools.iter().filter(|pool| pool.kind() == kind);
        of_kind.map(|pool| pool.stats().reserved.current).sum::<u64>() as usize
    };
    // Pinned and host memory have one pool each for both devices, with memory of its own for each stream.
    for kind in [MemoryKind::Device, MemoryKind::Managed, MemoryKind::Pinned, MemoryKind::Host] {
        assert_eq!(reserved(kind), 4 * MIB, "{kind:?}");
    }
    assert_eq!(stats.reserved.current as usize, 16 * MIB);
    let copied = |copies| [Direction::ToDevice, Direction::OnHost].map(|to| to.of(&copies).count);
    assert_eq!(copied(stats.copies), [4, 4]);
    let copied: Vec<u64> = pools.iter().map(|pool| copied(pool.stats().copies).iter().sum()).collect();
    assert_eq!(copied, [1, 1, 0, 1, 1, 0, 2, 2]);
    assert_eq!(manager.cleanup(), 0, "all is in use");
    let pinned = pinned_bytes();
    held.truncate(4);
    let reserved =
        || manager.pools().into_iter().map(|pool| pool.stats().reserved.current).collect::<Vec<_>>();
    let before = reserved();
    assert_eq!(manager.cleanup(), 8 * MIB);
    let after = reserved();
    assert_eq!(before.iter().zip(&after).filter(|(before, after)| after < before).count(), 4);
    assert_eq!(pinned - pinned_bytes(), 2 * MIB);
    assert_eq!(manager.stats().reserved.current as usize, 8 * MIB);
    drop(held);
    assert_eq!(manager.cleanup(), 8 * MIB);
    assert_eq!(manager.stats().reserved.current, 0);
    drop((streams, manager, contexts, second));
    gpu.finish();
}

/// Buffers of one manager are made and dropped on several threads, each on its own stream.
#[test]
fn threads_share_a_manager() {
    let gpu = Gpu::new();
    let manager = manager(&gpu);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (manager, context) = (&manager, &gpu.context);
            scope.spawn(move || {
                let stream = Stream::new(context).unwrap();
                let mut random = fastrand::Rng::with_seed(u64::from(thread));
                let mut held = Vec::new();
                for number in 0..200 {
                    let access = random.choice([Access::Unknown, Access::Random, Access::HostHeavy]).unwrap();
                    let request = manager.request().access(access);
                    let value = thread << 16 | number;
                    held.push((
                        Buffer::from_slice(&request, &vec![value; random.usize(1..5000)], &stream).unwrap(),
                        value,
                    ));
                    if held.len() == 10 {
                        let (buffer, value) = held.swap_remove(random.usize(..10));
                        assert!(buffer.to_vec().unwrap().iter().all(|&found| found == value));
                    }
                    let _ = manager.recommendations();
                }
                drop(held);
                stream.synchronize().unwrap();
            });
        }
    });
    let stats = manager.stats();
    assert_eq!((stats.blocks.current, stats.allocated.current), (0, 0));
    assert_eq!(manager.cleanup() as u64, stats.reserved.current);
    drop(manager);
    gpu.finish();
}

#[cfg(feature = "serde")]
#[test]
fn options_and_reports_are_data() {
    let gpu = Gpu::new();
    let text = r#"{"rules": [[[], null, ["Host", "Device"]]], "share": 0.9}"#;
    let options: ManagerOptions = serde_json::from_str(text).unwrap();
    let again: ManagerOptions = serde_json::from_str(&serde_json::to_string(&options).unwrap()).unwrap();
    assert_eq!(again, options);
    assert_eq!((options.least_touches, options.share), (32, 0.9));
    let manager = MemoryManager::new(std::slice::from_ref(&gpu.context), options).unwrap();
    let buffer = manager.allocate::<u8>(5, None, Access::Unknown).unwrap();
    assert_eq!(buffer.kind(), MemoryKind::Host);
    let stats = manager.stats();
    let read: allotment::pool::PoolStats =
        serde_json::from_str(&serde_json::to_string(&stats).unwrap()).unwrap();
    assert_eq!(read, stats);
    drop(buffer);
    drop(manager);
    gpu.finish();
}

/// Measured accesses beside a model: the host or the device must have its share of enough of them.
#[test]
fn accesses_are_judged_by_their_share() {
    for (share, eighths) in [(0.625, 5), (0.75, 6), (1.0, 8)] {
        for least_touches in [0, 1, 5, 6, 32] {
            let policy = ManagerOptions { share, least_touches, ..ManagerOptions::default() };
            for number in 0..4u64.pow(6) {
                let count = |place: u32| [0, 1, 3, 9][(number / 4u64.pow(place) % 4) as usize];
                let usage = Usage {
                    from_host: count(0),
                    to_host: count(1),
                    host_reads: count(2),
                    host_writes: count(3),
                    on_device: count(4),
                    kernels: count(5),
                    host_bytes: 0,
                };
                let host = (0..4).map(count).sum::<u64>();
                let device = count(4) + count(5);
                let has_share = |part| 8 * part >= eighths * (host + device);
                let expected = if host + device < least_touches.max(1) {
                    Access::Unknown
                } else if has_share(host) {
                    Access::HostHeavy
                } else if has_share(device) {
                    Access::Random
                } else {
                    Access::Unknown
                };
                assert_eq!(policy.judge(&usage), expected, "{usage:?} {share} {least_touches}");
            }
        }
    }
}

/// What is recommended exists, and is other memory than the buffer has.
#[test]
fn recommendations_are_of_memory_that_there_is() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let concurrent = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
    gpu.control().set_attribute(1, concurrent as u32, 0);
    let second = Context::new(1).unwrap();
    let rule = |access: &[Access], targets: &[MemoryKind]| (access.to_vec(), None, targets.to_vec());
    let table = |of_host| ManagerOptions {
        rules: vec![
            rule(&[Access::HostHeavy], of_host),
            rule(&[Access::ReadOnly], &[MemoryKind::ReadMostly, MemoryKind::Device]),
            rule(&[], &[MemoryKind::Device]),
        ],
        ..ManagerOptions::default()
    };
    let managed_first = table(&[MemoryKind::Managed, MemoryKind::Pinned]);
    for (contexts, to) in [
        (vec![gpu.context.clone()], MemoryKind::Managed),
        (vec![second.clone()], MemoryKind::Pinned),
        (vec![second.clone(), gpu.context.clone()], MemoryKind::Managed),
    ] {
        let manager = MemoryManager::new(&contexts, managed_first.clone()).unwrap();
        let polled = manager.allocate::<u8>(100, None, Access::Random).unwrap();
        (0..40).for_each(|_| assert_eq!(polled.to_vec().unwrap(), [0; 100]));
        let [only] = manager.recommendations().try_into().unwrap();
        assert_eq!((only.from, only.to, only.declared), (MemoryKind::Device, to, Access::Random));
        drop(polled);
        drop(manager);
    }
    // Read-mostly memory is as good as the device's own for kernels, but not for a host that writes.
    let options = table(&[MemoryKind::Device]);
    let manager = MemoryManager::new(std::slice::from_ref(&gpu.context), options).unwrap();
    let request = manager.request().access(Access::ReadOnly);
    let (mut filled, mut written) = (bytes(&request, 100, &gpu), bytes(&request, 100, &gpu));
    assert_eq!(filled.kind(), MemoryKind::ReadMostly);
    for number in 0..40 {
        filled.as_view_mut().fill(number).unwrap();
        written.copy_from(&[number; 100]).unwrap();
    }
    let [only] = manager.recommendations().try_into().unwrap();
    assert_eq!((only.address as u64, only.from), (written.address(), MemoryKind::ReadMostly));
    assert_eq!((only.to, only.measured), (MemoryKind::Device, Access::HostHeavy));
    drop((filled, written));
    drop((manager, second));
    gpu.finish();
}

/// A manager goes on in host memory after the loss of its device if the options say so, and on another device if there is one.
#[test]
fn a_manager_goes_on_without_its_device() {
    for after_loss in [false, true] {
        let gpu = Gpu::new();
        if on_system() {
            return;
        }
        let second = Context::new(1).unwrap();
        let options = ManagerOptions { after_loss, ..ManagerOptions::default() };
        let alone = MemoryManager::new(std::slice::from_ref(&gpu.context), options.clone()).unwrap();
        let both = MemoryManager::new(&[gpu.context.clone(), second.clone()], options).unwrap();
        let before = alone.allocate::<u8>(MIB, None, Access::Random).unwrap();
        gpu.control().fault(0, 700);
        for (kind, access) in
            [(None, Access::Random), (Some(MemoryKind::Device), Access::Unknown), (None, Access::ReadOnly)]
        {
            match alone.allocate::<u8>(MIB, kind, access) {
                Ok(mut buffer) if after_loss => {
                    buffer.slice_mut(5..).unwrap().fill(7).unwrap();
                    let on_host = buffer.stream().id() == Stream::host().id();
                    assert_eq!((buffer.kind(), on_host), (MemoryKind::Host, true));
                    assert_eq!(buffer.to_vec().unwrap()[4..6], [0, 7]);
                    assert!(buffer.usage().is_some(), "it is the manager's");
                }
                Err(Error::Pool(PoolError::Source(error))) if !after_loss => {
                    assert_eq!(error.kind, SourceErrorKind::Lost);
                }
                other => panic!("{other:?} {after_loss}"),
            }
        }
        let elsewhere = both.allocate::<u8>(MIB, None, Access::Random).unwrap();
        assert_eq!((elsewhere.kind(), elsewhere.device()), (MemoryKind::Device, Some(1)));
        // SAFETY: no other thread, library or reference uses the context.
        unsafe { gpu.context.reset() }.unwrap();
        assert_eq!(alone.allocate::<u8>(MIB, None, Access::Random).is_ok(), after_loss);
        drop((before, elsewhere, alone, both, second));
        gpu.finish_lost();
    }
}

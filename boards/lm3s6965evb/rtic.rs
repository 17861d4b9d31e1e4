//! RTIC tasks of two priorities that share one heap: an urgent task allocates readings and sends them to a slower one,
//! which it interrupts while that one allocates and frees. Then the demo runs, which checks that all memory came back.
//!
//! The heap's lock is a critical section, so a task of any priority may allocate, interrupt handlers included.
#![no_std]
#![no_main]

extern crate alloc;

use allotment::{Heap, heap};

#[global_allocator]
static HEAP: Heap = heap!(24 * 1024);

/// The number of readings to send.
const READINGS: u32 = 200;

#[rtic::app(device = lm3s6965, dispatchers = [UART0, UART1])]
mod app {
    use super::{HEAP, READINGS};
    use alloc::{boxed::Box, format, vec::Vec};
    use rtic_sync::{
        channel::{Receiver, Sender},
        make_channel,
    };

    /// A measurement of a sensor.
    type Reading = Box<Vec<u32>>;

    #[shared]
    struct Shared {}

    #[local]
    struct Local {}

    #[init]
    fn init(_: init::Context) -> (Shared, Local) {
        let (sender, receiver) = make_channel!(Reading, 4);
        // Both start once `init` has returned, the urgent one first.
        let Ok(()) = measure::spawn(sender) else { unreachable!("it is spawned once") };
        let Ok(()) = report::spawn(receiver) else { unreachable!("it is spawned once") };
        (Shared {}, Local {})
    }

    /// Allocates readings, and waits while four of them have not been received.
    #[task(priority = 2)]
    async fn measure(_: measure::Context, mut readings: Sender<'static, Reading, 4>) {
        for number in 0..READINGS {
            let reading = (number..number + 8 + number % 24).collect();
            if readings.send(Box::new(reading)).await.is_err() {
                break;
            }
        }
    }

    /// Frees the readings, and allocates memory of its own in between.
    #[task(priority = 1)]
    async fn report(_: report::Context, mut readings: Receiver<'static, Reading, 4>) {
        let (mut count, mut bytes) = (0, 0);
        while let Ok(reading) = readings.recv().await {
            count += 1;
            bytes += format!("reading {count} of {} samples: {:?}", reading.len(), reading.first()).len();
        }
        assert!(count == READINGS && bytes > 4000, "every reading arrived");
        assert_eq!(HEAP.used(), 0, "all memory came back");

        boards::finish(demo::run(&demo::SMALL_INVENTORY, 20, || HEAP.stats()))
    }
}

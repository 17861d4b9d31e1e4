//! Work on as many things at once as there are processors.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Result, anyhow};

/// Does `work` with each item and its index; ends at the first error.
///
/// # Errors
/// One of those that `work` returns.
pub fn each<T: Sync>(items: &[T], work: impl Fn(usize, &T) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some((index, item)) = items.iter().enumerate().nth(next.fetch_add(1, Relaxed)) {
            work(index, item).inspect_err(|_| next.store(items.len(), Relaxed))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a worker panicked"))?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_worked_on_once() {
        let sum = AtomicUsize::new(0);
        each(&[1, 2, 3], |index, item| {
            sum.fetch_add(index * 10 + item, Relaxed);
            Ok(())
        })
        .unwrap();
        assert_eq!(sum.into_inner(), 36);
        assert!(each(&[1, 2, 3], |_, item| if *item == 2 { Err(anyhow!("two")) } else { Ok(()) }).is_err());
    }
}

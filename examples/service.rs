//! A small service under load: clients put requests into a queue, workers answer them, and every block that one thread
//! allocates is freed by another. It stops by itself.
//!
//! ```sh
//! cargo run --release --features std --example service             # 200,000 requests
//! cargo run --release --features std --example service -- 5000
//! ```

use allotment::os::{Cached, Depot};
use allotment::{Heap, Tiered, heap};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

static HEAP: Heap<Tiered> = heap!(128 * 1024 * 1024);
static DEPOT: Depot = Depot::new(&HEAP, 512 * 1024);
#[global_allocator]
static CACHED: Cached = Cached::new(&DEPOT);

const CLIENTS: u32 = 2;
const WORKERS: u32 = 2;
/// Requests that may wait; a client that finds the queue full waits too.
const QUEUE: usize = 256;

/// A request, and where its answer goes.
struct Request {
    path: String,
    answer: SyncSender<String>,
}

/// `/sum/1/2/3` is answered with 6, anything else with what is wrong.
fn answer(path: &str) -> String {
    let Some(numbers) = path.strip_prefix("/sum/") else { return format!("404 {path}") };
    let numbers: Result<Vec<u64>, _> = numbers.split('/').map(str::parse).collect();
    match numbers {
        Ok(numbers) => format!("200 {}", numbers.iter().sum::<u64>()),
        Err(error) => format!("400 {error}"),
    }
}

/// Answers requests until all clients are gone.
fn serve(queue: &Mutex<Receiver<Request>>) {
    loop {
        let request = queue.lock().expect("no worker has panicked").recv();
        let Ok(Request { path, answer: to }) = request else { break };
        // A client that has gone away needs no answer.
        let _ = to.send(answer(&path));
    }
}

/// Sends `count` requests and checks the answers; how many were right.
fn ask(client: u32, count: u32, queue: &SyncSender<Request>) -> u32 {
    let (answer, answers) = sync_channel(1);
    let mut right = 0;
    for number in 0..count {
        let (path, expected) = match number % 10 {
            0 => (format!("/unknown/{number}"), format!("404 /unknown/{number}")),
            _ => (format!("/sum/{client}/{number}/7"), format!("200 {}", client + number + 7)),
        };
        queue.send(Request { path, answer: answer.clone() }).expect("the workers wait for requests");
        right += u32::from(answers.recv().expect("every request is answered") == expected);
    }
    right
}

fn main() {
    let requests: u32 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(200_000);
    let (sender, receiver) = sync_channel(QUEUE);
    let receiver = Arc::new(Mutex::new(receiver));
    let start = Instant::now();

    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let receiver = Arc::clone(&receiver);
            thread::spawn(move || serve(&receiver))
        })
        .collect();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let sender = sender.clone();
            thread::spawn(move || ask(client, requests / CLIENTS, &sender))
        })
        .collect();
    drop(sender);

    let right: u32 = clients.into_iter().map(|client| client.join().expect("the client works")).sum();
    for worker in workers {
        worker.join().expect("the worker works");
    }
    assert_eq!(right, requests / CLIENTS * CLIENTS, "every answer is right");

    println!("{right} requests answered in {:?}", start.elapsed());
    println!("{} bytes in use at most, the threads' caches included; {} are left", HEAP.peak(), HEAP.used());
}

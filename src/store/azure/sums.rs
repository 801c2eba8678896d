//! MD5 of all sent and read bytes, which the service compares (RFC 1321).
//!
//! Each step of MD5 waits for the one before it, so that a processor with a single message is mostly idle. Messages of about the
//! same time and the same length, such as chunks of a transfer, are therefore hashed together: see `docs/decisions/0017`.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use md5::{Digest, Md5};
use tokio::{sync::oneshot, time::timeout};

use super::super::content::compute;

/// Messages that are hashed together.
pub(super) const LANES: usize = 8;

/// Fewer bytes are hashed sooner than another thread would begin.
const AT_ONCE: usize = 64 << 10;

/// So long a message waits for company: a small part of the time that its bytes will take on a line.
const WAIT: Duration = Duration::from_millis(8);

struct Waiting {
    bytes: Bytes,
    tell: oneshot::Sender<[u8; 16]>,
}

static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

pub(super) async fn md5(bytes: &Bytes) -> [u8; 16] {
    if bytes.len() <= AT_ONCE {
        return md5_of_one(bytes);
    }
    let (tell, mut told) = oneshot::channel();
    let complete = wait(Waiting { bytes: bytes.clone(), tell });
    if !complete && let Ok(sum) = timeout(WAIT, &mut told).await {
        return sum.unwrap_or_else(|_| md5_of_one(bytes));
    }
    // Begun when there is a core for it, with all that have come until then, unless one of them has taken this.
    let own = bytes.clone();
    let sum = tokio::select! {
        biased;
        sum = &mut told => sum,
        () = compute(move || answer(take(&own))) => told.await,
    };
    // A panic sends no sum.
    sum.unwrap_or_else(|_| md5_of_one(bytes))
}

/// Whether as many wait now as are hashed together.
fn wait(message: Waiting) -> bool {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    // The caller may have gone.
    waiting.retain(|other| !other.tell.is_closed());
    waiting.push(message);
    waiting.len() >= LANES
}

/// These bytes, unless another thread has taken them, and others of their length.
fn take(own: &Bytes) -> Vec<Waiting> {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(at) = waiting.iter().position(|message| message.bytes.as_ptr() == own.as_ptr()) else { return Vec::new() };
    let mut taken = vec![waiting.swap_remove(at)];
    taken.extend(waiting.extract_if(.., |message| message.bytes.len() == own.len()).take(LANES - 1));
    taken
}

fn answer(messages: Vec<Waiting>) {
    let sums = md5_of_each(&messages.iter().map(|message| &message.bytes[..]).collect::<Vec<_>>());
    for (message, sum) in messages.into_iter().zip(sums) {
        let _ = message.tell.send(sum);
    }
}

fn md5_of_one(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

/// At most [`LANES`] of one length.
fn md5_of_each(messages: &[&[u8]]) -> Vec<[u8; 16]> {
    #[cfg(target_arch = "x86_64")]
    // Eight take the time of two that are hashed one after the other.
    if messages.len() > 2 && is_x86_feature_detected!("avx2") {
        let lanes = std::array::from_fn(|lane| *messages.get(lane).unwrap_or(&messages[0]));
        // SAFETY: the processor has AVX2.
        let sums = unsafe { super::lanes::md5(&lanes) };
        return sums[..messages.len()].to_vec();
    }
    messages.iter().map(|message| md5_of_one(message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: usize, length: usize) -> Bytes {
        (0..length).map(|at| (at * 7 + number * 31 + at / 251) as u8).collect()
    }

    #[test]
    fn together_they_are_what_each_is_alone() {
        for length in (0..=600).chain([4_095, 4_096, 65_537, 4 << 20]) {
            for count in if length < 1_000 { 1..=LANES } else { LANES..=LANES } {
                let messages: Vec<Bytes> = (0..count).map(|number| message(number, length)).collect();
                let messages: Vec<&[u8]> = messages.iter().map(|message| &message[..]).collect();
                let alone: Vec<[u8; 16]> = messages.iter().map(|message| md5_of_one(message)).collect();
                assert_eq!(md5_of_each(&messages), alone, "{count} of {length}");
            }
        }
    }

    #[tokio::test]
    async fn who_waits_gets_its_own_and_nobody_waits_for_whoever_has_gone() {
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..60 {
            let bytes = message(number, AT_ONCE - 5 + number % 3 * 5);
            asking.spawn(async move {
                let patience = Duration::from_millis(if number % 4 == 0 { 0 } else { 60_000 });
                let sum = timeout(patience, md5(&bytes)).await;
                assert!(sum.is_ok() || number % 4 == 0, "{number} waited for ever");
                assert!(sum.is_err() || sum == Ok(md5_of_one(&bytes)), "{number}");
                sum.is_ok()
            });
        }
        assert!(asking.join_all().await.into_iter().filter(|told| *told).count() >= 45);
    }
}

//! Publishes to routers which prompts the prefix cache holds, as vLLM's KV events over ZeroMQ.
//!
//! A message has three frames: the topic, the number of the batch in 8 bytes (big-endian), and the
//! batch in MessagePack: `[seconds since 1970, [events], rank]`, each event a map with its `type`.
//! A subscriber that missed batches requests them at a second socket with the number of the first one,
//! and gets them as `["", number, batch]`, with the number -1 at the end (vLLM, "KV events subscriber").

use crate::error::Error;
use realizar_runtime::engine::{CacheEvent, CacheSink, PAGE_LEN};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

/// The number that ends a replay: -1.
const END: [u8; 8] = [0xff; 8];
/// How long one that asked for a replay may take to read a batch.
const READ_TIME: Duration = Duration::from_secs(5);

/// Where the events go.
#[derive(Debug, Clone)]
pub struct KvEventsConfig {
    /// Where they are published: `tcp://HOST:PORT`. The host `*` is every address of the machine,
    /// and the port 0 takes a free one.
    pub endpoint: String,
    /// Where batches can be requested again, if they can.
    pub replay_endpoint: Option<String>,
    /// The first frame of every message, by which subscribers choose.
    pub topic: String,
    /// Batches that can be requested again.
    pub history: usize,
}

impl KvEventsConfig {
    /// Published there without a topic, as vLLM does by default.
    pub fn new(endpoint: impl Into<String>) -> Self {
        let (topic, history) = (String::new(), 10_000);
        Self { endpoint: endpoint.into(), replay_endpoint: None, topic, history }
    }
}

/// The sockets of one model's events. They close when it is dropped.
#[derive(Debug)]
pub struct KvEvents {
    endpoint: String,
    replay_endpoint: Option<String>,
    sender: UnboundedSender<Vec<CacheEvent>>,
    _tasks: JoinSet<()>,
}

impl KvEvents {
    /// Opens the sockets.
    ///
    /// # Errors
    /// If an endpoint is malformed or cannot be listened on.
    pub async fn bind(config: KvEventsConfig) -> Result<Self, Error> {
        let KvEventsConfig { endpoint, replay_endpoint, topic, history } = config;
        let mut socket = PubSocket::new();
        let endpoint = bind(&mut socket, endpoint).await?;
        let batches = Arc::new(Mutex::new(History { batches: VecDeque::new(), max: history }));
        let (sender, receiver) = unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(publish(socket, topic.into_bytes(), receiver, batches.clone()));
        let replay_endpoint = match replay_endpoint {
            None => None,
            Some(endpoint) => {
                let mut socket = RouterSocket::new();
                let endpoint = bind(&mut socket, endpoint).await?;
                tasks.spawn(replay(socket, batches));
                Some(endpoint)
            }
        };
        Ok(Self { endpoint, replay_endpoint, sender, _tasks: tasks })
    }

    /// Where the events are published, with the real port.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Where batches can be requested again, with the real port.
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.replay_endpoint.as_deref()
    }

    /// The receiver of an engine's events.
    pub fn sink(&self) -> CacheSink {
        let sender = self.sender.clone();
        // Without sockets there are no subscribers.
        CacheSink(Arc::new(move |events| drop(sender.send(events))))
    }
}

/// Listens at an endpoint, and returns it with the real port.
async fn bind(socket: &mut impl Socket, endpoint: String) -> Result<String, Error> {
    let real = endpoint.replacen("//*:", "//0.0.0.0:", 1);
    match socket.bind(&real).await {
        Ok(bound) => Ok(bound.to_string()),
        Err(source) => {
            let source = match source {
                ZmqError::Network(error) => error,
                other => std::io::Error::other(other),
            };
            Err(Error::Bind { address: endpoint, source })
        }
    }
}

/// The last batches, with their numbers.
#[derive(Debug)]
struct History {
    batches: VecDeque<(u64, Vec<u8>)>,
    max: usize,
}

impl History {
    fn push(&mut self, number: u64, batch: Vec<u8>) {
        self.batches.push_back((number, batch));
        if self.batches.len() > self.max {
            self.batches.pop_front();
        }
    }

    /// The oldest batch from `number` on.
    fn from(&self, number: u64) -> Option<(u64, Vec<u8>)> {
        let (oldest, _) = self.batches.front()?;
        let idx = usize::try_from(number.saturating_sub(*oldest)).ok()?;
        self.batches.get(idx).cloned()
    }
}

async fn publish(
    mut socket: PubSocket,
    topic: Vec<u8>,
    mut receiver: UnboundedReceiver<Vec<CacheEvent>>,
    history: Arc<Mutex<History>>,
) {
    let mut number = 0_u64;
    while let Some(events) = receiver.recv().await {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let batch = match encode(time.as_secs_f64(), events) {
            Ok(batch) => batch,
            Err(error) => {
                tracing::error!("the events of the prefix cache cannot be encoded: {error}");
                continue;
            }
        };
        let frames = [topic.clone(), number.to_be_bytes().to_vec(), batch.clone()];
        history.lock().unwrap_or_else(PoisonError::into_inner).push(number, batch);
        number += 1;
        if let Err(error) = socket.send(message(frames)).await {
            tracing::error!("the events of the prefix cache cannot be published: {error}");
        }
    }
}

/// Sends the batches that are requested. A request is `[who, "", number]`.
async fn replay(mut socket: RouterSocket, history: Arc<Mutex<History>>) {
    while let Ok(request) = socket.recv().await {
        let frames = request.into_vec();
        let [who, empty, number] = frames.as_slice() else { continue };
        let (Ok(number), true) = (<[u8; 8]>::try_from(&**number), empty.is_empty()) else {
            continue;
        };
        let mut number = u64::from_be_bytes(number);
        loop {
            // The history continues while a slow reader is waited for.
            let batch = history.lock().unwrap_or_else(PoisonError::into_inner).from(number);
            let (head, batch) = match batch {
                Some((found, batch)) => {
                    number = found + 1;
                    (found.to_be_bytes(), Some(batch))
                }
                None => (END, None),
            };
            let is_end = batch.is_none();
            let frames = [who.to_vec(), Vec::new(), head.to_vec(), batch.unwrap_or_default()];
            let sent = timeout(READ_TIME, socket.send(message(frames))).await;
            if is_end || !matches!(sent, Ok(Ok(()))) {
                break;
            }
        }
    }
}

fn message<const N: usize>(frames: [Vec<u8>; N]) -> ZmqMessage {
    let mut frames = frames.into_iter();
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    frames.for_each(|frame| message.push_back(frame.into()));
    message
}

/// An event as vLLM's subscribers read it.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
enum Event {
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: usize,
        lora_id: Option<u32>,
        medium: Option<&'static str>,
        lora_name: Option<&'static str>,
    },
    BlockRemoved {
        block_hashes: Vec<u64>,
        medium: Option<&'static str>,
    },
    AllBlocksCleared,
}

/// The events of a step; pages that follow one another, or go together, are one event.
fn merged(events: Vec<CacheEvent>) -> Vec<Event> {
    let mut out: Vec<Event> = Vec::new();
    for event in events {
        match (event, out.last_mut()) {
            (
                CacheEvent::Stored { hash, parent, tokens },
                Some(Event::BlockStored { block_hashes, token_ids, .. }),
            ) if block_hashes.last() == parent.as_ref() => {
                block_hashes.push(hash);
                token_ids.extend(tokens);
            }
            (CacheEvent::Stored { hash, parent, tokens }, _) => out.push(Event::BlockStored {
                block_hashes: vec![hash],
                parent_block_hash: parent,
                token_ids: tokens,
                block_size: PAGE_LEN,
                lora_id: None,
                medium: None,
                lora_name: None,
            }),
            (CacheEvent::Removed { hash }, Some(Event::BlockRemoved { block_hashes, .. })) => {
                block_hashes.push(hash);
            }
            (CacheEvent::Removed { hash }, _) => {
                out.push(Event::BlockRemoved { block_hashes: vec![hash], medium: None });
            }
            (CacheEvent::Cleared, _) => out.push(Event::AllBlocksCleared),
            // Routers know no other kind.
            _ => {}
        }
    }
    out
}

fn encode(time: f64, events: Vec<CacheEvent>) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    let mut batch = Vec::new();
    let rank = 0_u32;
    let mut serializer = rmp_serde::Serializer::new(&mut batch).with_struct_map();
    (time, merged(events), rank).serialize(&mut serializer)?;
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn stored(hash: u64, parent: Option<u64>, token: u32) -> CacheEvent {
        CacheEvent::Stored { hash, parent, tokens: vec![token; PAGE_LEN] }
    }

    #[test]
    fn batches_are_as_subscribers_read_them() {
        let events = vec![
            stored(1, None, 7),
            stored(u64::MAX, Some(1), 8),
            stored(3, Some(1), 9),
            CacheEvent::Removed { hash: 3 },
            CacheEvent::Removed { hash: 1 },
            CacheEvent::Cleared,
        ];
        let batch = encode(1.5, events).unwrap();
        // An array of three, a double, and the list of events, the first of them a map of eight.
        assert_eq!(batch[..2], [0x93, 0xcb]);
        assert_eq!(batch[10..12], [0x94, 0x88]);
        let value: Value = rmp_serde::from_slice(&batch).unwrap();
        let block = |hashes: Value, parent: Value, tokens: Vec<u32>| {
            json!({"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent,
                   "token_ids": tokens, "block_size": PAGE_LEN, "lora_id": null, "medium": null,
                   "lora_name": null})
        };
        let want = json!([1.5, [
            block(json!([1, u64::MAX]), Value::Null, [[7; PAGE_LEN], [8; PAGE_LEN]].concat()),
            block(json!([3]), json!(1), vec![9; PAGE_LEN]),
            {"type": "BlockRemoved", "block_hashes": [3, 1], "medium": null},
            {"type": "AllBlocksCleared"},
        ], 0]);
        assert_eq!(value, want);
    }

    #[test]
    fn a_history_has_an_end() {
        let mut history = History { batches: VecDeque::new(), max: 2 };
        assert_eq!(history.from(0), None);
        for number in 0..4 {
            history.push(number, vec![number as u8]);
        }
        let found = |from| history.from(from).map(|(number, _)| number);
        assert_eq!((found(0), found(2), found(3), found(4)), (Some(2), Some(2), Some(3), None));
        assert_eq!(found(u64::MAX), None);
    }
}

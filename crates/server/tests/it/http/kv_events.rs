//! What routers hear of the prefix cache.

use super::common::TestServer;
use realizar_runtime::engine::{EngineOptions, PAGE_LEN};
use realizar_server::{Error, KvEvents, KvEventsConfig};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use zeromq::{ReqSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const PATH: &str = "/v1/completions";

/// The frames of the next message.
fn next(runtime: &Runtime, socket: &mut impl SocketRecv) -> Vec<Vec<u8>> {
    let message = runtime.block_on(async {
        let time = timeout(Duration::from_secs(60), socket.recv());
        time.await.expect("a message in time").expect("a message")
    });
    message.iter().map(|frame| frame.to_vec()).collect()
}

fn events(batch: &[u8]) -> Vec<Value> {
    let batch: Value = rmp_serde::from_slice(batch).unwrap();
    assert_eq!(batch[2], 0, "the rank");
    batch[1].as_array().unwrap().clone()
}

#[test]
fn routers_hear_of_pages_and_can_ask_again() {
    let runtime = Runtime::new().unwrap();
    let config = KvEventsConfig {
        replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
        topic: "kv@pod@tiny".to_owned(),
        ..KvEventsConfig::new("tcp://127.0.0.1:0")
    };
    let told = runtime.block_on(KvEvents::bind(config)).unwrap();
    let mut subscriber = SubSocket::new();
    runtime.block_on(async {
        subscriber.connect(told.endpoint()).await.unwrap();
        subscriber.subscribe("kv@").await.unwrap();
    });
    let options = EngineOptions { cache_sink: Some(told.sink()), ..EngineOptions::default() };
    let server = TestServer::with(|_| {}, options);

    // What is published before a subscription arrives is not sent again, so ask until one does.
    let ids = |first: usize| (0..2 * PAGE_LEN + 3).map(|i| 3 + (first + i) % 200).collect();
    let ask = |first: usize| {
        let prompt: Vec<usize> = ids(first);
        server.ok(PATH, &json!({"prompt": prompt, "max_tokens": 1}));
        prompt
    };
    let mut first = 0;
    let (frames, prompt) = loop {
        let prompt = ask(first);
        let wait = async { timeout(Duration::from_millis(200), subscriber.recv()).await };
        let message = runtime.block_on(wait);
        if let Ok(message) = message {
            let frames = message.unwrap().iter().map(|frame| frame.to_vec()).collect::<Vec<_>>();
            break (frames, prompt);
        }
        first += 1;
        assert!(first < 100, "nothing is published");
    };
    assert_eq!(frames.len(), 3);
    assert_eq!(frames[0], b"kv@pod@tiny");
    let number = u64::from_be_bytes(frames[1].as_slice().try_into().unwrap());
    let heard = events(&frames[2]);
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert_eq!(heard[0]["type"], "BlockStored");
    assert_eq!(heard[0]["block_size"], PAGE_LEN);
    assert_eq!(heard[0]["parent_block_hash"], Value::Null);
    assert_eq!(heard[0]["block_hashes"].as_array().unwrap().len(), 2);
    assert_eq!(heard[0]["token_ids"], json!(prompt[..2 * PAGE_LEN]));

    // A prompt that continues the first has its last page as parent.
    let more: Vec<usize> = [&prompt[..2 * PAGE_LEN], &[7; PAGE_LEN], &[9]].concat();
    server.ok(PATH, &json!({"prompt": more, "max_tokens": 1}));
    let frames = next(&runtime, &mut subscriber);
    assert_eq!(frames[1], (number + 1).to_be_bytes());
    let later = events(&frames[2]);
    assert_eq!(later[0]["parent_block_hash"], heard[0]["block_hashes"][1]);
    assert_eq!(later[0]["token_ids"], json!(vec![7; PAGE_LEN]));

    let mut asker = ReqSocket::new();
    runtime.block_on(asker.connect(told.replay_endpoint().unwrap())).unwrap();
    for (from, want) in [(number + 1, Some((number + 1, &frames[2]))), (number + 2, None)] {
        let request = ZmqMessage::from(from.to_be_bytes().to_vec());
        runtime.block_on(asker.send(request)).unwrap();
        let (want_number, batch) = match want {
            Some((number, batch)) => (number.to_be_bytes(), batch.clone()),
            None => ([0xff; 8], Vec::new()),
        };
        // A socket of requests takes the empty frame away, and one answer to each.
        assert_eq!(next(&runtime, &mut asker), [want_number.to_vec(), batch]);
        if want.is_some() {
            asker = ReqSocket::new();
            runtime.block_on(asker.connect(told.replay_endpoint().unwrap())).unwrap();
        }
    }
}

#[test]
fn endpoints_that_cannot_be_used_are_told() {
    let runtime = Runtime::new().unwrap();
    let bind = |config| runtime.block_on(KvEvents::bind(config));
    let first = bind(KvEventsConfig::new("tcp://127.0.0.1:0")).unwrap();
    let wildcard = bind(KvEventsConfig::new("tcp://*:0")).unwrap();
    assert!(wildcard.endpoint().starts_with("tcp://0.0.0.0:"), "{}", wildcard.endpoint());
    assert_eq!(wildcard.replay_endpoint(), None);
    let replay = KvEventsConfig {
        replay_endpoint: Some(first.endpoint().to_owned()),
        ..KvEventsConfig::new("tcp://127.0.0.1:0")
    };
    for config in [KvEventsConfig::new("nonsense"), KvEventsConfig::new(first.endpoint()), replay] {
        let error = bind(config).unwrap_err();
        assert!(matches!(error, Error::Bind { .. }), "{error}");
    }
}

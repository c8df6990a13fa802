//! A server on a loopback address, and raw clients that are slow in one way each.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::*;

/// Longest wait for anything that must happen, also on a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);
const NEVER: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(300);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const ANSWER_END: &str = "hello";

struct Server {
    address: SocketAddr,
    connections: Connections,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

async fn server(limits: Limits) -> Server {
    let large = || async { vec![0_u8; 64 << 20] };
    let slow = || async {
        sleep(2 * SHORT).await;
        ANSWER_END
    };
    let app = Router::new()
        .route("/", get(|| async { ANSWER_END }))
        .route("/slow", get(slow))
        .route("/large", get(large))
        .route("/body", post(|body: String| async move { body.len().to_string() }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let connections = Connections::new(&limits);
    let wait = async { drop(stopped.await) };
    let task = tokio::spawn(serve(listener, app, limits, connections.clone(), wait));
    Server { address, connections, stop: Some(stop), task }
}

/// Limits that no test reaches by accident.
fn patient() -> Limits {
    Limits { header: NEVER, body: NEVER, stalled_write: NEVER, connections: 100 }
}

impl Server {
    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A client that has got one answer, and keeps its connection.
    async fn answered(&self) -> TcpStream {
        let mut client = self.client().await;
        client.write_all(REQUEST).await.unwrap();
        let mut text = String::new();
        while !text.ends_with(ANSWER_END) {
            let mut buffer = [0; 1024];
            let length = timeout(PATIENCE, client.read(&mut buffer)).await.unwrap().unwrap();
            assert!(length > 0, "closed after {text:?}");
            text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        }
        client
    }
}

/// Everything until the server closes the connection.
async fn rest(mut client: TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = timeout(PATIENCE, client.read_to_end(&mut bytes)).await.expect("the connection stays open");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn header_that_does_not_arrive_ends_the_connection() {
    let server = server(Limits { header: SHORT, ..patient() }).await;
    let began = Instant::now();
    for part in ["", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nhost: a\r\nx-slow: "] {
        let mut client = server.client().await;
        client.write_all(part.as_bytes()).await.unwrap();
        assert!(!rest(client).await.contains("200 OK"), "{part}");
    }
    assert!(began.elapsed() >= 3 * SHORT, "the limit is not the configured one");
}

/// Catches a limit that each byte extends.
#[tokio::test]
async fn header_that_trickles_ends_the_connection() {
    let server = server(Limits { header: SHORT, ..patient() }).await;
    let (mut reader, mut writer) = server.client().await.into_split();
    let trickle = tokio::spawn(async move {
        writer.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        while writer.write_all(b"a: b\r\n").await.is_ok() {
            sleep(SHORT / 10).await;
        }
    });
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, reader.read_to_end(&mut bytes)).await.expect("the connection stays open");
    timeout(PATIENCE, trickle).await.unwrap().unwrap();
}

#[tokio::test]
async fn idle_connection_is_closed_but_a_slow_answer_is_not_cut_off() {
    let server = server(Limits { header: SHORT, ..patient() }).await;
    assert_eq!(rest(server.answered().await).await, "");
    let mut client = server.client().await;
    client.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let answer = rest(client).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(ANSWER_END), "{answer}");
}

#[tokio::test]
async fn body_that_does_not_arrive_ends_the_request() {
    let server = server(Limits { body: SHORT, ..patient() }).await;
    for (body, status) in [("1234", "HTTP/1.1 200"), ("12", "HTTP/1.1 400")] {
        let mut client = server.client().await;
        let head = "POST /body HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 4\r\n\r\n";
        client.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let answer = rest(client).await;
        assert!(answer.starts_with(status), "{answer}");
    }
}

#[tokio::test]
async fn client_that_does_not_read_its_answer_is_disconnected() {
    let server = server(Limits { stalled_write: SHORT, ..patient() }).await;
    let mut client = server.client().await;
    client.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    client.readable().await.unwrap();
    timeout(PATIENCE, async {
        while server.connections.open() > 0 {
            sleep(SHORT / 10).await;
        }
    })
    .await
    .expect("the connection stays open");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_the_end_of_another() {
    let server = server(Limits { connections: 2, ..patient() }).await;
    let (first, _second) = (server.answered().await, server.answered().await);
    assert_eq!((server.connections.open(), server.connections.limit()), (2, 2));
    let mut third = server.client().await;
    third.write_all(REQUEST).await.unwrap();
    assert!(timeout(SHORT, third.readable()).await.is_err(), "a third connection is served");
    drop(first);
    timeout(PATIENCE, third.readable()).await.unwrap().unwrap();
}

#[tokio::test]
async fn server_that_stops_answers_what_has_begun() {
    let mut server = server(patient()).await;
    let idle = server.answered().await;
    let mut busy = server.client().await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    sleep(SHORT).await;
    server.stop.take().unwrap().send(()).unwrap();
    assert_eq!(rest(idle).await, "");
    assert!(rest(busy).await.ends_with(ANSWER_END));
    timeout(PATIENCE, server.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

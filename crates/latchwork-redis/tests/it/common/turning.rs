//! A proxy that may exchange the server behind an open connection.

#![allow(unreachable_pub, reason = "each test file uses it in its own place")]

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A proxy that keeps its client's connection and turns to another server behind it.
pub struct Turning {
    pub port: u16,
    turn: tokio::sync::mpsc::Sender<u16>,
}

impl Turning {
    pub async fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (turn, mut turns) = tokio::sync::mpsc::channel::<u16>(1);
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", upstream)).await.unwrap();
            let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                tokio::select! {
                    read = client.read(&mut asked) => match read {
                        Ok(count @ 1..) => server.write_all(&asked[..count]).await.unwrap(),
                        _ => return,
                    },
                    read = server.read(&mut answered) => match read {
                        Ok(count @ 1..) => client.write_all(&answered[..count]).await.unwrap(),
                        _ => return,
                    },
                    Some(port) = turns.recv() => {
                        server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                        server.write_all(b"HELLO 3\r\n").await.unwrap();
                        assert!(server.read(&mut answered).await.unwrap() > 0);
                    }
                }
            }
        });
        Self { port, turn }
    }

    /// What comes from now on goes to the server at this port.
    pub async fn turn_to(&self, port: u16) {
        self.turn.send(port).await.unwrap();
    }
}

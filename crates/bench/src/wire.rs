//! The server over a socket against a bare TCP echo on the same runtime: what the protocol and the engine add.

use crate::message::message;
use crate::quantile::median;
use crate::raw::{Raw, frame};
use crate::report::{Report, Target};
use anyhow::{Result, ensure};
use rockdove_documents::{DocBuilder, doc};
use std::net::SocketAddr;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Exchanges before the measurement.
const WARM_UP: usize = 2000;

/// Measures `ping` and `insert` on the server at `address` against an echo of frames of the same sizes.
pub async fn against_echo(address: SocketAddr, exchanges: usize) -> Result<Report> {
    ensure!(exchanges > 0, "nothing to measure");
    let echo = start_echo().await?;
    let ping = frame(&doc! { "ping": 1, "$db": "admin" });
    let insert = |n: u64| {
        let mut command = DocBuilder::new();
        command.append("insert", "msg").append_docs("documents", &[message(n)]).append("$db", "bench");
        frame(&command.finish())
    };
    let mut report = Report::default();
    for (name, limit, make) in
        [("ping", 2.5, &(|_| ping.clone()) as &dyn Fn(u64) -> Vec<u8>), ("insert", 4.0, &insert)]
    {
        let mut ratios = Vec::new();
        for round in 0..3u64 {
            let offset = round * 1_000_000;
            let bare = exchange(echo, exchanges, |n| make(n + offset))?;
            let ours = exchange(address, exchanges, |n| make(n + offset))?;
            ratios.push(ours / bare);
        }
        report.add(
            format!("wire: p50 of {name} / TCP echo of the same size"),
            median(ratios),
            "x",
            Target::AtMost(limit),
        );
    }
    Ok(report)
}

/// Median seconds of one exchange.
fn exchange(address: SocketAddr, exchanges: usize, make: impl Fn(u64) -> Vec<u8>) -> Result<f64> {
    let mut connection = Raw::connect(address)?;
    let mut times = Vec::with_capacity(exchanges);
    for n in 0..WARM_UP + exchanges {
        let request = make(n as u64);
        let started = Instant::now();
        connection.send(&request)?;
        connection.receive()?;
        if n >= WARM_UP {
            times.push(started.elapsed().as_secs_f64());
        }
    }
    Ok(median(times))
}

/// Sends every frame back as it came.
async fn start_echo() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                let _ = stream.set_nodelay(true); // slower without, not wrong
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(&buffer[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(address)
}

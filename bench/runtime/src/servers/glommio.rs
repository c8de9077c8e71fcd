//! Echo on glommio's own `TcpStream`.

use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement, spawn_local};

async fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer).await {
            Ok(len @ 1..) => {
                if stream.write_all(&buffer[..len]).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

pub fn serve(cpu: usize, spin_us: u64) {
    let mut builder = LocalExecutorBuilder::new(Placement::Fixed(cpu));
    if spin_us > 0 {
        builder = builder.spin_before_park(Duration::from_micros(spin_us));
    }
    let executor = builder.spawn(|| async {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        super::announce(listener.local_addr().expect("bound").port());
        while let Ok(stream) = listener.accept().await {
            spawn_local(echo(stream)).detach();
        }
    });
    executor
        .expect("glommio starts")
        .join()
        .expect("glommio runs");
}

//! Lossy proxy: passes requests on and, when told, loses the answer to the next one of a kind.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A proxy on the loopback; its threads end with the process.
pub struct LossyProxy {
    address: String,
    /// How the request begins whose answer is lost, once.
    lost: Arc<Mutex<Option<Lost>>>,
}

#[derive(Clone, Copy)]
struct Lost {
    method: &'static str,
    containing: &'static str,
}

impl LossyProxy {
    /// Starts a proxy for the server at `server`.
    pub fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let lost = Arc::new(Mutex::new(None));
        let (server, shared) = (server.to_owned(), Arc::clone(&lost));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(&server).expect("the server answers");
                let lost = Arc::clone(&shared);
                std::thread::spawn(move || pass(client, server, &lost));
            }
        });
        Self { address, lost }
    }

    /// The proxy's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Loses the answer to the next request of `method` whose head has `containing` in it.
    pub fn lose(&self, method: &'static str, containing: &'static str) {
        *self.lost.lock().expect("no panic") = Some(Lost { method, containing });
    }

    /// Whether what was to be lost has been.
    pub fn has_lost(&self) -> bool {
        self.lost.lock().expect("no panic").is_none()
    }
}

fn pass(mut client: TcpStream, mut server: TcpStream, lost: &Arc<Mutex<Option<Lost>>>) {
    let lose_answer = Arc::new(Mutex::new(false));
    let (mut to_client, mut from_server, lose) = (
        client.try_clone().expect("a handle"),
        server.try_clone().expect("a handle"),
        Arc::clone(&lose_answer),
    );
    std::thread::spawn(move || {
        let mut buffer = [0; 64 << 10];
        while let Ok(bytes @ 1..) = from_server.read(&mut buffer) {
            if *lose.lock().expect("no panic") || to_client.write_all(&buffer[..bytes]).is_err() {
                break;
            }
        }
        // Both may be gone already.
        drop((to_client.shutdown(Shutdown::Both), from_server.shutdown(Shutdown::Both)));
    });
    let mut buffer = [0; 64 << 10];
    while let Ok(bytes @ 1..) = client.read(&mut buffer) {
        {
            let mut lost = lost.lock().expect("no panic");
            let head = String::from_utf8_lossy(&buffer[..bytes.min(2000)]);
            if lost.is_some_and(|l| head.starts_with(l.method) && head.contains(l.containing)) {
                *lost = None;
                *lose_answer.lock().expect("no panic") = true;
            }
        }
        if server.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
}

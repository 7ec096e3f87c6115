//! A picture of a contended lock: who waits and who holds, what happens when a holder dies, and when one is paused for
//! longer than its lease.
//!
//! ```text
//! cargo bench -p leasehold-benches --bench timeline -- --plot "$PWD/docs/plots/timeline.svg"
//! ```
//!
//! Four worker processes share one mutex on a Redis server that this program starts. Each waits for the lock, works,
//! writes to a resource that compares tokens (this process), and releases. After a while the process that holds the
//! lock is killed, and later the one that holds it is stopped for two leases; when it goes on, it writes, although it
//! has been told that its lease is lost. Everything in the picture is what the processes have reported, by the
//! machine's clock. The program fails if the late write was accepted, or two workers wrote at the same time.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use common::{RedisServer, Result, Setup};
use leasehold::{Client, Fence, FencingToken, MutexOptions};
use leasehold_support::child::ChildProcess;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WORKERS: usize = 4;
const TTL: Duration = Duration::from_millis(1200);
/// How long a worker works under the lock, and how long it does something else afterwards.
const WORK: Duration = Duration::from_millis(220);
const REST: Duration = Duration::from_millis(130);
const KILL_AT: Duration = Duration::from_millis(1500);
const STOP_AT: Duration = Duration::from_millis(4200);
/// How often it is tried again.
const ATTEMPTS: usize = 4;
const END: Duration = Duration::from_millis(8500);

#[derive(Parser)]
struct Args {
    /// The file to draw into, as SVG
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
    /// A worker: the URL of the server, and the address of the resource
    #[arg(long, hide = true, num_args = 2)]
    worker: Option<Vec<String>>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(worker) = &args.worker {
        return work(&worker[0], worker[1].parse()?);
    }
    let Some(server) = RedisServer::start_with_or_skip("the timeline", Setup::as_a_service()) else {
        return Ok(());
    };
    let mut seen = observe(&server.url())?;
    // On a busy machine a signal may arrive when the worker has already written.
    for _ in 0..ATTEMPTS {
        if seen.check().is_ok() {
            break;
        }
        seen = observe(&server.url())?;
    }
    seen.check()?;
    if let Some(file) = &args.plot {
        seen.draw(file)?;
    }
    println!("{} holds; {} late writes refused", seen.holds(), seen.count("refused"));
    Ok(())
}

// A worker

#[tokio::main(flavor = "current_thread")]
async fn work(url: &str, resource: SocketAddr) -> Result<()> {
    let client = Client::connect(url).await?;
    let mutex = client.mutex_with("machine:42", MutexOptions::new().ttl(TTL))?;
    let mut resource = BufReader::new(TcpStream::connect(resource)?);
    loop {
        say("waits", 0);
        let guard = mutex.lock().await?;
        let token = guard.token().get();
        say("holds", token);
        let lost = guard.lost();
        tokio::spawn(async move {
            lost.await;
            say("lost", token);
        });
        tokio::time::sleep(WORK).await;
        // It does not ask whether it still holds the lock: the resource is what must not believe it.
        writeln!(resource.get_mut(), "{token}")?;
        let mut answer = String::new();
        resource.read_line(&mut answer)?;
        say(answer.trim(), token);
        if guard.release().await.is_ok() {
            say("released", token);
        }
        tokio::time::sleep(REST).await;
    }
}

fn say(what: &str, token: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    println!("{what} {token} {}", now.as_micros());
}

// What the workers do

/// What a worker, or this program, has reported.
#[derive(Clone, Debug)]
struct Report {
    worker: usize,
    what: String,
    /// Since the start.
    at: f64,
}

#[derive(Debug, Default)]
struct Seen(Vec<Report>);

fn observe(url: &str) -> Result<Seen> {
    let resource = serve_resource()?;
    let (sender, reports) = channel();
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let resource = resource.to_string();
        let args = ["--worker", url, &resource].map(str::to_owned);
        let mut process = ChildProcess::start(std::env::current_exe()?.as_os_str(), args, |command| {
            command.stdout(Stdio::piped());
        });
        let (output, sender) = (process.take_stdout(), sender.clone());
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
                if sender.send((worker, line)).is_err() {
                    return;
                }
            }
        });
        workers.push(process);
    }
    drop(sender);
    let mut observer = Observer { reports, seen: Seen::default(), origin: None };
    observer.until(KILL_AT);
    let killed = observer.next_holder();
    thread::sleep(WORK / 3);
    observer.note(killed, "killed");
    workers[killed].kill();
    observer.until(STOP_AT);
    let stopped = observer.next_holder();
    thread::sleep(WORK / 3);
    observer.note(stopped, "stopped");
    workers[stopped].pause();
    observer.until(STOP_AT + TTL * 2);
    observer.note(stopped, "resumed");
    workers[stopped].resume();
    observer.until(END);
    Ok(observer.seen)
}

/// The resource compares tokens, one request after another.
fn serve_resource() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let fence = Arc::new(Fence::new());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(std::result::Result::ok) {
            let fence = Arc::clone(&fence);
            thread::spawn(move || -> std::io::Result<()> {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line)? > 0 {
                    let token = FencingToken::new(line.trim().parse().map_err(std::io::Error::other)?);
                    let answer = if fence.admit(token).is_ok() { "wrote" } else { "refused" };
                    writeln!(stream.get_mut(), "{answer}")?;
                    line.clear();
                }
                Ok(())
            });
        }
    });
    Ok(address)
}

struct Observer {
    reports: Receiver<(usize, String)>,
    seen: Seen,
    /// When all of them had begun.
    origin: Option<(Instant, f64)>,
}

impl Observer {
    /// Takes down what is reported until so long after the first report.
    fn until(&mut self, end: Duration) {
        while let Some(left) = self.left(end) {
            if let Ok((worker, line)) = self.reports.recv_timeout(left) {
                self.take(worker, &line);
            }
        }
    }

    fn left(&self, end: Duration) -> Option<Duration> {
        let Some((began, _)) = self.origin else { return Some(Duration::from_secs(10)) };
        end.checked_sub(began.elapsed()).filter(|left| !left.is_zero())
    }

    /// The next worker that reports that it holds the lock.
    fn next_holder(&mut self) -> usize {
        loop {
            let Ok((worker, line)) = self.reports.recv() else { return 0 };
            self.take(worker, &line);
            if line.starts_with("holds") {
                return worker;
            }
        }
    }

    fn take(&mut self, worker: usize, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        let [what, _, at] = words[..] else { return };
        let at = at.parse::<f64>().unwrap_or_default() / 1e6;
        let (_, origin) = *self.origin.get_or_insert_with(|| (Instant::now(), at));
        self.seen.0.push(Report { worker, what: what.to_owned(), at: at - origin });
    }

    fn note(&mut self, worker: usize, what: &str) {
        let Some((_, origin)) = self.origin else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.seen.0.push(Report { worker, what: what.to_owned(), at: now.as_secs_f64() - origin });
    }
}

/// A time during which a worker did something.
#[derive(Clone, Copy, Debug)]
struct Span {
    worker: usize,
    from: f64,
    to: f64,
}

impl Seen {
    fn count(&self, what: &str) -> usize {
        self.0.iter().filter(|report| report.what == what).count()
    }

    fn holds(&self) -> usize {
        self.count("holds")
    }

    fn check(&self) -> Result<()> {
        for (what, times) in [("killed", 1), ("stopped", 1), ("refused", 1)] {
            if self.count(what) != times {
                return Err(format!("{} times {what}, not {times}", self.count(what)).into());
            }
        }
        if self.count("lost") == 0 {
            return Err("the holder that was stopped has not been told that its lease is lost".into());
        }
        Ok(())
    }

    /// From each report `from` of a worker to its next one of `to`.
    fn spans(&self, from: &str, to: &[&str]) -> Vec<Span> {
        let end = END.as_secs_f64();
        let starts = self.0.iter().filter(|report| report.what == from);
        starts
            .map(|start| {
                let of_worker = self.0.iter().filter(|report| report.worker == start.worker);
                let ends = of_worker.filter(|report| report.at > start.at && to.contains(&&*report.what));
                let to = ends.map(|report| report.at).fold(end, f64::min);
                Span { worker: start.worker, from: start.at, to }
            })
            .collect()
    }

    fn draw(&self, file: &Path) -> Result<()> {
        const OURS: RGBColor = RGBColor(0, 114, 178);
        const RED: RGBColor = RGBColor(200, 40, 40);
        const GREY: RGBColor = RGBColor(200, 200, 200);
        let root = SVGBackend::new(file, (1080, 330)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .margin_bottom(44)
            .x_label_area_size(34)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..END.as_secs_f64(), (WORKERS as f64)..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(WHITE)
            .bold_line_style(GREY.mix(0.5))
            .x_labels(9)
            .x_label_formatter(&|x| format!("{x:.0} s"))
            .y_labels(0)
            .label_style(("sans-serif", 14))
            .axis_style(GREY)
            .draw()?;
        let bar = |span: &Span, half: f64, style: ShapeStyle| {
            let y = span.worker as f64 + 0.5;
            Rectangle::new([(span.from, y - half), (span.to, y + half)], style)
        };
        let waits = self.spans("waits", &["holds", "killed"]);
        chart.draw_series(waits.iter().map(|span| bar(span, 0.05, GREY.filled())))?;
        let holds = self.spans("holds", &["released", "lost", "killed", "stopped"]);
        chart.draw_series(holds.iter().map(|span| bar(span, 0.28, OURS.filled())))?;
        let pauses = self.spans("stopped", &["resumed"]);
        chart.draw_series(pauses.iter().map(|span| bar(span, 0.28, OURS.mix(0.2).filled())))?;
        let at = |what: &str| self.0.iter().filter(|report| report.what == what).cloned().collect::<Vec<_>>();
        let text = ("sans-serif", 14).into_font();
        let left = Pos::new(HPos::Left, VPos::Center);
        let mut write = |x: f64, y: f64, text_of: &str, colour: RGBColor| {
            chart
                .draw_series([Text::new(text_of.to_owned(), (x, y), text.color(&colour).pos(left))])
                .map(drop)
        };
        for report in at("killed") {
            write(
                report.at + 0.12,
                report.worker as f64 + 0.5,
                "killed: the others wait until its lease has ended",
                RED,
            )?;
        }
        for report in at("stopped") {
            write(report.at + 0.1, report.worker as f64 + 0.5, "paused for longer than its lease", BLACK)?;
        }
        for report in at("refused") {
            write(report.at - 0.1, report.worker as f64 + 0.92, "its late write is refused", RED)?;
        }
        let marks = at("killed").into_iter().chain(at("refused"));
        chart.draw_series(
            marks.map(|report| Cross::new((report.at, report.worker as f64 + 0.5), 9, RED.stroke_width(3))),
        )?;
        for worker in 0..WORKERS {
            let y = chart.backend_coord(&(0.0, worker as f64 + 0.5)).1;
            let style = text.color(&BLACK).pos(left);
            root.draw(&Text::new(format!("process {}", worker + 1), (8, y), style))?;
        }
        legend(&root, OURS, GREY)?;
        Ok(root.present()?)
    }
}

fn legend<DB: DrawingBackend>(
    root: &DrawingArea<DB, plotters::coord::Shift>,
    ours: RGBColor,
    grey: RGBColor,
) -> Result<()>
where
    DB::ErrorType: 'static,
{
    let text = ("sans-serif", 14).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    let y = 306;
    root.draw(&Rectangle::new([(82, y - 8), (110, y + 8)], ours.filled()))?;
    root.draw(&Text::new("holds the lock", (118, y), text.clone()))?;
    root.draw(&Rectangle::new([(242, y - 2), (270, y + 2)], grey.filled()))?;
    root.draw(&Text::new("waits for it", (278, y), text))?;
    Ok(())
}

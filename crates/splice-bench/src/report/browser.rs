//! A real browser, told what to do by the DevTools protocol through a pair of pipes
//! (`--remote-debugging-pipe`: messages in JSON, each ended by a NUL).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use netlab::{Process, Scratch};
use serde_json::{Value, json};

/// How long anything may take before the browser counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Chromium reads from descriptor 3 and writes to 4. Its sandbox refuses root, and a machine without
/// a display has no GPU.
const SCRIPT: &str = "exec \"$0\" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
     --disable-background-networking --no-first-run --hide-scrollbars --remote-debugging-pipe \
     \"--user-data-dir=$1\" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1";

/// A browser with one page.
pub(crate) struct Browser {
    to: ChildStdin,
    from: Receiver<Value>,
    last_id: u64,
    session: Option<String>,
    /// What the page has complained about or asked for since [`Browser::open`].
    heard: Vec<Value>,
    // The process goes before its directory.
    _process: Process,
    _profile: Scratch,
}

/// The two schemes of colours that a reader may prefer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

impl Browser {
    /// Starts it.
    pub(crate) fn start() -> Result<Self> {
        let profile = Scratch::new("browser")?;
        let chromium = netlab::program("chromium").context("there is no chromium")?;
        let mut command = Process::command("sh");
        command
            .args(["-c", SCRIPT])
            .arg(chromium)
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command)?;
        let child = process.child_mut();
        let to = child.stdin.take().context("its input is piped")?;
        let output = child.stdout.take().context("its output is piped")?;
        let (sender, from) = mpsc::channel();
        thread::spawn(move || {
            let messages = BufReader::new(output).split(0).map_while(Result::ok);
            for message in messages {
                let Ok(message) = serde_json::from_slice(&message) else {
                    return;
                };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            to,
            from,
            last_id: 0,
            session: None,
            heard: Vec::new(),
            _process: process,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        )?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// Opens `file` in a window this wide and waits until it has loaded.
    pub(crate) fn open(&mut self, file: &Path, width: u32, scheme: Scheme) -> Result<()> {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}),
        )?;
        let value = match scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        self.call(
            "Emulation.setEmulatedMedia",
            json!({"features": [{"name": "prefers-color-scheme", "value": value}]}),
        )?;
        self.heard.clear();
        let url = format!("file://{}", file.display());
        let answer = self.call("Page.navigate", json!({"url": url}))?;
        if let Some(error) = answer["errorText"].as_str() {
            bail!("cannot open {url}: {error}");
        }
        let loaded = |heard: &Value| heard["method"] == "Page.loadEventFired";
        while !self.heard.iter().any(loaded) {
            let message = self.next()?;
            self.heard.push(message);
        }
        Ok(())
    }

    /// What `expression` comes to in the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let mut answer = self.call(
            "Runtime.evaluate",
            json!({"expression": expression, "returnByValue": true}),
        )?;
        if !answer["exceptionDetails"].is_null() {
            bail!("the page threw: {}", answer["exceptionDetails"]);
        }
        Ok(answer["result"]["value"].take())
    }

    /// What is in the window, or the `whole` page, as a PNG image.
    pub(crate) fn screenshot(&mut self, whole: bool) -> Result<Vec<u8>> {
        let answer = self.call(
            "Page.captureScreenshot",
            json!({"format": "png", "captureBeyondViewport": whole}),
        )?;
        let text = answer["data"].as_str().context("a screenshot has data")?;
        Ok(BASE64_STANDARD.decode(text)?)
    }

    /// Errors and warnings of the page, whoever raised them.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let complains = |heard: &&Value| match heard["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Network.loadingFailed") => true,
            Some("Runtime.consoleAPICalled") => ["error", "warning", "assert"]
                .contains(&heard["params"]["type"].as_str().unwrap_or("")),
            Some("Log.entryAdded") => ["error", "warning"]
                .contains(&heard["params"]["entry"]["level"].as_str().unwrap_or("")),
            _ => false,
        };
        let all = self.heard.iter().filter(complains);
        all.map(|heard| heard["params"].to_string()).collect()
    }

    /// What the page has asked for, itself included.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.heard
            .iter()
            .filter(|heard| heard["method"] == "Network.requestWillBeSent")
            .filter_map(|heard| heard["params"]["request"]["url"].as_str())
            .map(str::to_owned)
            .collect()
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(message.to_string().as_bytes())?;
        self.to.write_all(&[0])?;
        loop {
            let mut message = self.next()?;
            if message["id"] != self.last_id {
                self.heard.push(message);
            } else if message["error"].is_null() {
                return Ok(message["result"].take());
            } else {
                bail!("{method}: {}", message["error"]);
            }
        }
    }

    fn next(&self) -> Result<Value> {
        self.from
            .recv_timeout(PATIENCE)
            .context("the browser says nothing any more")
    }
}

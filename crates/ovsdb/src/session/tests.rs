use super::*;

const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

fn session() -> Session {
    Session::new(Config::new("D", Selection::new().all("T")).with_lock("l"), at(0))
}

/// The messages that the session wants to send.
fn take(session: &mut Session) -> Vec<Value> {
    let mut framer = Framer::default();
    framer.push(session.output());
    let n = session.output().len();
    session.sent(n);
    std::iter::from_fn(|| framer.next_message().unwrap()).map(|m| m.to_json()).collect()
}

fn events(session: &mut Session) -> Vec<Event> {
    std::iter::from_fn(|| session.poll_event()).collect()
}

fn send(session: &mut Session, now: u64, json: Value) {
    session.received(at(now), json.to_string().as_bytes());
}

fn schema() -> Value {
    json!({"name": "D", "version": "1", "tables": {"T": {"columns": {"n": {"type": "integer"}}}}})
}

fn row(n: u64) -> String {
    Uuid(n.into()).to_string()
}

/// Connects and answers until the monitor request is out; gives its id.
fn to_monitor(session: &mut Session, now: u64) -> Value {
    assert!(session.wants_connection(at(now)));
    session.connecting(at(now));
    session.connected(at(now));
    let sent = take(session);
    assert_eq!((&sent[0]["method"], &sent[0]["params"]), (&json!("get_schema"), &json!(["D"])));
    send(session, now, json!({"id": sent[0]["id"], "result": schema(), "error": null}));
    let sent = take(session);
    assert_eq!((&sent[0]["method"], &sent[0]["params"]), (&json!("lock"), &json!(["l"])));
    send(session, now, json!({"id": sent[0]["id"], "result": {"locked": true}, "error": null}));
    assert_eq!(sent[1]["method"], json!("monitor_cond_since"));
    sent[1].clone()
}

fn to_running(session: &mut Session, now: u64) {
    let monitor = to_monitor(session, now);
    let reply = json!([false, row(7), {"T": {row(1): {"initial": {"n": 5}}}}]);
    send(session, now, json!({"id": monitor["id"], "result": reply, "error": null}));
    assert!(session.is_synced() && session.has_lock());
}

#[test]
fn a_session_from_the_connection_to_a_transaction() {
    let mut session = session();
    assert_eq!(session.transact(&Transaction::new()), Err(TransactError::NotConnected));
    to_running(&mut session, 0);
    let got = events(&mut session);
    assert_eq!(got[0], Event::LockGained);
    assert!(matches!(&got[1], Event::Synced(changes) if changes.len() == 1));
    let mut txn = Transaction::new();
    txn.update("T", Uuid(1), vec![("n".to_owned(), 6.into())]);
    let id = session.transact(&txn).unwrap();
    let sent = take(&mut session);
    assert_eq!(sent[0]["params"][1], json!({"op": "assert", "lock": "l"}));
    // The change comes before the result.
    let update = json!({"T": {row(1): {"modify": {"n": 6}}}});
    send(&mut session, 1, json!({"method": "update3", "params": ["D", row(8), update], "id": null}));
    send(&mut session, 1, json!({"id": sent[0]["id"], "result": [{}, {"count": 1}], "error": null}));
    let got = events(&mut session);
    assert!(matches!(&got[0], Event::Changed(changes) if changes.len() == 1));
    assert!(matches!(&got[1], Event::Transacted(of, Ok(done)) if *of == id && done.count(0) == 1));
    assert_eq!(session.replica().last_txn(), Some(Uuid(8)));
    // Lock notifications for others are not ours.
    send(&mut session, 1, json!({"method": "stolen", "params": ["other"], "id": null}));
    assert!(session.has_lock());
    send(&mut session, 1, json!({"method": "stolen", "params": ["l"], "id": null}));
    assert_eq!(events(&mut session), [Event::LockLost]);
    assert_eq!(session.transact(&txn), Err(TransactError::NotLocked));
    // Questions are answered.
    send(&mut session, 1, json!({"method": "echo", "params": ["x"], "id": "echo"}));
    send(&mut session, 1, json!({"method": "dance", "params": [], "id": 4}));
    let sent = take(&mut session);
    assert_eq!(sent[0], json!({"id": "echo", "result": ["x"], "error": null}));
    assert_eq!(sent[1], json!({"id": 4, "result": null, "error": "unknown method"}));
}

#[test]
fn a_connection_resumes_where_the_last_one_ended() {
    let mut session = session();
    to_running(&mut session, 0);
    session.disconnect(at(10_000), Reason::Closed);
    assert!(!session.has_lock() && !session.is_synced());
    assert_eq!(session.replica().rows("T").count(), 1);
    events(&mut session);
    let monitor = to_monitor(&mut session, 11_000);
    assert_eq!(monitor["params"][3], json!(row(7)));
    let reply = json!([true, row(9), {"T": {row(1): {"modify": {"n": 8}}, row(2): {"insert": {}}}}]);
    send(&mut session, 11_000, json!({"id": monitor["id"], "result": reply, "error": null}));
    let got = events(&mut session);
    assert!(matches!(&got[1], Event::Synced(changes) if changes.len() == 2));
    assert_eq!(session.replica().row("T", Uuid(1)).unwrap().integer("n"), Some(8));
    assert_eq!(session.replica().last_txn(), Some(Uuid(9)));
}

#[test]
fn a_server_that_reads_no_answers_is_given_up() {
    let mut session = session();
    to_running(&mut session, 0);
    take(&mut session);
    events(&mut session);
    let most = session.config.max_unread_answers;
    let echo = |session: &mut Session| {
        send(session, 1, json!({"method": "echo", "params": ["x".repeat(most / 10)], "id": "e"}));
        session.is_connected()
    };
    // As long as the answers are read, there may be any number.
    for _ in 0..20 {
        assert!(echo(&mut session));
        take(&mut session);
    }
    let answered = (0..20).take_while(|_| echo(&mut session)).count();
    assert_eq!(answered, 10);
    let got = events(&mut session);
    assert_eq!(got[1], Event::Disconnected(Reason::Unread(most)));
    assert!(session.output().is_empty());
}

#[test]
fn an_update_that_does_not_fit_leads_to_a_whole_load() {
    let mut session = session();
    to_running(&mut session, 0);
    events(&mut session);
    let update = json!({"T": {row(5): {"modify": {"n": 6}}}});
    send(&mut session, 1, json!({"method": "update3", "params": ["D", row(8), update], "id": null}));
    assert!(!session.is_connected());
    let got = events(&mut session);
    assert_eq!(got[0], Event::LockLost);
    assert!(matches!(&got[1], Event::Disconnected(Reason::Update(UpdateError::UnknownRow { .. }))));
    let monitor = to_monitor(&mut session, 2000);
    assert_eq!(monitor["params"][3], json!(Uuid::ZERO.to_string()));
}

#[test]
fn pauses_grow_from_one_second_to_eight() {
    let mut session = session();
    let mut now = 0;
    for pause in [1000, 2000, 4000, 8000, 8000] {
        assert!(session.wants_connection(at(now)));
        session.connecting(at(now));
        session.disconnect(at(now), Reason::Connect("no".to_owned()));
        assert_eq!(session.deadline(), Some(at(now + pause)));
        assert!(!session.wants_connection(at(now + pause - 1)));
        now += pause;
    }
    // A server that hangs up at once does not make the pauses shorter; one that stayed does.
    to_running(&mut session, now);
    session.disconnect(at(now + 1), Reason::Closed);
    assert_eq!(session.deadline(), Some(at(now + 8001)));
    to_running(&mut session, now + 8001);
    session.disconnect(at(now + 30_000), Reason::Closed);
    assert_eq!(session.deadline(), Some(at(now + 31_000)));
}

#[test]
fn silence_is_probed_and_then_ends_the_connection() {
    let mut session = session();
    to_running(&mut session, 0);
    assert_eq!(session.deadline(), Some(at(5000)));
    session.tick(at(4999));
    assert!(take(&mut session).is_empty());
    session.tick(at(5000));
    let sent = take(&mut session);
    assert_eq!(sent[0]["method"], json!("echo"));
    session.tick(at(5001));
    assert!(take(&mut session).is_empty());
    send(&mut session, 6000, json!({"id": sent[0]["id"], "result": [], "error": null}));
    assert_eq!(session.deadline(), Some(at(11_000)));
    session.tick(at(11_000));
    assert_eq!(session.deadline(), Some(at(16_000)));
    session.tick(at(16_000));
    assert_eq!(events(&mut session).pop(), Some(Event::Disconnected(Reason::Probe(5000 * MS))));
}

#[test]
fn a_server_that_answers_probes_but_nothing_else_is_given_up() {
    let mut session = session();
    session.connecting(at(0));
    session.connected(at(0));
    take(&mut session);
    for second in 1..60 {
        session.tick(at(second * 1000));
        for message in take(&mut session) {
            send(&mut session, second * 1000, json!({"id": message["id"], "result": [], "error": null}));
        }
    }
    assert!(session.is_connected());
    session.tick(at(60_000));
    let reason = Reason::StepTimeout("get_schema", 60_000 * MS);
    assert_eq!(reason.to_string(), "no reply to `get_schema` for 60 s");
    assert_eq!(events(&mut session), [Event::Disconnected(reason)]);
}

#[test]
fn an_attempt_to_connect_has_an_end() {
    let mut session = session();
    session.connecting(at(0));
    assert_eq!(session.deadline(), Some(at(10_000)));
    session.tick(at(10_000));
    assert_eq!(events(&mut session), [Event::Disconnected(Reason::ConnectTimeout(10_000 * MS))]);
    assert!(!session.is_connecting());
}

#[test]
fn older_methods_are_tried_only_when_one_is_unknown() {
    let mut session = session();
    let first = to_monitor(&mut session, 0);
    send(&mut session, 0, json!({"id": first["id"], "error": "unknown method"}));
    let second = take(&mut session).remove(0);
    assert_eq!(second["method"], json!("monitor_cond"));
    assert_eq!(second["params"].as_array().unwrap().len(), 3);
    send(&mut session, 0, json!({"id": second["id"], "error": {"error": "unknown method"}}));
    let third = take(&mut session).remove(0);
    assert_eq!(third["method"], json!("monitor"));
    send(&mut session, 0, json!({"id": third["id"], "result": {}, "error": null}));
    assert_eq!(session.method(), Some(Method::Monitor));

    let mut session = self::session();
    let first = to_monitor(&mut session, 0);
    send(&mut session, 0, json!({"id": first["id"], "error": {"error": "permission error", "details": "role"}}));
    let Some(Event::Disconnected(reason)) = events(&mut session).pop() else { panic!("still connected") };
    assert_eq!(reason.to_string(), "monitor_cond_since: permission error: role");
}

#[test]
fn too_many_transactions_are_refused() {
    let mut config = Config::new("D", Selection::new().all("T")).with_lock("l");
    config.max_in_flight = 2;
    let mut session = Session::new(config, at(0));
    to_running(&mut session, 0);
    let txn = Transaction::new();
    assert!(session.transact(&txn).is_ok() && session.transact(&txn).is_ok());
    assert_eq!(session.transact(&txn), Err(TransactError::Busy(2)));
}

#[test]
fn nonsense_in_any_state_ends_the_connection_and_nothing_else() {
    let nonsense = [
        json!({"id": 99, "result": 1, "error": null}),
        json!({"id": "x", "result": 1, "error": null}),
        json!({"method": "update3", "params": ["D", "x", {}], "id": null}),
        json!({"method": "update3", "params": ["D"], "id": null}),
        json!({"method": "update3", "params": ["D", row(1), 5], "id": null}),
        json!({"method": "monitor_canceled", "params": ["D"], "id": null}),
        json!([]),
    ];
    for message in nonsense {
        let mut session = session();
        to_running(&mut session, 0);
        send(&mut session, 1, message.clone());
        assert!(!session.is_connected(), "{message}");
        // What comes after the end is not looked at.
        send(&mut session, 1, json!({"method": "echo", "params": [], "id": 1}));
        assert!(session.output().is_empty());
        to_running(&mut session, 5000);
    }
    for reply in [json!(null), json!([]), json!([true]), json!([false, row(1), 5]), json!([false, 1, {}]), json!({})] {
        let mut session = session();
        let monitor = to_monitor(&mut session, 0);
        send(&mut session, 1, json!({"id": monitor["id"], "result": reply, "error": null}));
        assert!(!session.is_connected(), "{reply}");
    }
    for (reply, error) in [(json!({}), json!(null)), (json!(null), json!(5)), (json!(null), json!(null))] {
        let mut session = session();
        session.connecting(at(0));
        session.connected(at(0));
        send(&mut session, 1, json!({"id": 1, "result": reply, "error": error}));
        assert!(!session.is_connected(), "{reply}");
    }
}

#[test]
fn notifications_that_are_not_ours_are_passed_over() {
    let mut session = session();
    to_running(&mut session, 0);
    events(&mut session);
    for message in [
        json!({"method": "update3", "params": ["other", row(1), {}], "id": null}),
        json!({"method": "update2", "params": ["D", {"T": 5}], "id": null}),
        json!({"method": "news", "params": null, "id": null}),
    ] {
        send(&mut session, 1, message);
        assert!(session.is_connected() && events(&mut session).is_empty());
    }
}

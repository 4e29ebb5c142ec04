use proptest::prelude::*;

use super::*;
use crate::change::ChangeKind;

fn schema(json: Value) -> DatabaseSchema {
    DatabaseSchema::parse(&json).unwrap()
}

fn test_schema() -> DatabaseSchema {
    schema(json!({"name": "D", "version": "1", "tables": {
        "T": {"columns": {
            "name": {"type": "string"},
            "tag": {"type": {"key": "integer", "min": 0, "max": 1}},
            "set": {"type": {"key": "integer", "min": 0, "max": "unlimited"}},
            "map": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
        }},
        "U": {"columns": {"x": {"type": "boolean"}}},
    }}))
}

fn replica() -> Replica {
    let mut replica = Replica::new();
    let missing = replica.prepare(&test_schema(), &Selection::new().all("T").columns("U", &["x", "y"]).all("V"));
    assert_eq!(missing, ["U:y", "V"]);
    replica
}

fn uuid(n: u128) -> String {
    Uuid(n).to_string()
}

const M2: Method = Method::MonitorCond;

#[test]
fn rows_come_change_and_go() {
    let mut replica = replica();
    assert_eq!(
        replica.monitor_requests(&test_schema()),
        json!({"T": [{"columns": ["map", "name", "set", "tag"]}], "U": [{"columns": ["x"]}]})
    );
    let first = json!({"T": {uuid(1): {"initial": {"name": "a", "set": ["set", [1, 2]]}}}, "Other": 5});
    let changes = replica.load(M2, None, &first).unwrap();
    assert_eq!(changes.get("T", Uuid(1)).unwrap().kind(), ChangeKind::Insert);
    let modify = json!({"T": {uuid(1): {"modify": {"name": "b", "tag": 4, "set": ["set", [2, 3]], "new_column": 1}}}});
    let changes = replica.update(M2, None, &modify).unwrap();
    let change = changes.get("T", Uuid(1)).unwrap();
    assert!(change.changed("name") && change.changed("tag") && change.changed("set") && !change.changed("map"));
    let row = replica.row("T", Uuid(1)).unwrap();
    assert_eq!(
        (row.string("name"), row.integer("tag"), row.integers("set").collect::<Vec<_>>()),
        (Some("b"), Some(4), vec![1, 3])
    );
    // An optional value is not composite: it is replaced, also by nothing.
    replica.update(M2, None, &json!({"T": {uuid(1): {"modify": {"tag": ["set", []]}}}})).unwrap();
    assert_eq!(replica.row("T", Uuid(1)).unwrap().integer("tag"), None);
    let snapshot = replica.clone();
    let changes = replica.update(M2, None, &json!({"T": {uuid(1): {"delete": null}}})).unwrap();
    assert_eq!(changes.get("T", Uuid(1)).unwrap().kind(), ChangeKind::Delete);
    assert_eq!((replica.rows("T").count(), snapshot.rows("T").count()), (0, 1));
}

#[test]
fn a_bad_update_changes_nothing() {
    let mut replica = replica();
    replica.load(M2, Some(Uuid(9)), &json!({"T": {uuid(1): {"initial": {"name": "a"}}}})).unwrap();
    let before = replica.row("T", Uuid(1)).unwrap().clone();
    let good = json!({"modify": {"name": "b"}});
    for bad in [
        json!({"T": {uuid(1): good, uuid(2): {"modify": {"name": "x"}}}}),
        json!({"T": {uuid(1): good, uuid(2): {"delete": null}}}),
        json!({"T": {uuid(1): good}, "U": {uuid(3): {"insert": {"x": "yes"}}}}),
        json!({"T": {uuid(1): good, "nonsense": {"insert": {}}}}),
        json!({"T": {uuid(1): good}, "U": []}),
        json!({"T": {uuid(1): {"modify": {"set": ["set", [1, 1]]}}}}),
        json!([]),
        Value::Null,
    ] {
        assert!(replica.update(M2, None, &bad).is_err(), "{bad}");
        assert!(replica.load(M2, None, &bad).is_err(), "{bad}");
        assert!(Arc::ptr_eq(replica.row("T", Uuid(1)).unwrap(), &before), "{bad}");
        assert_eq!((replica.rows("T").count(), replica.last_txn()), (1, Some(Uuid(9))), "{bad}");
    }
}

#[test]
fn loading_again_reports_the_difference_only() {
    let mut replica = replica();
    let rows = json!({"T": {
        uuid(1): {"initial": {"name": "same"}}, uuid(2): {"initial": {"name": "old"}}, uuid(3): {"initial": {}},
    }});
    replica.load(M2, Some(Uuid(5)), &rows).unwrap();
    assert_eq!(replica.last_txn(), Some(Uuid(5)));
    let same = replica.row("T", Uuid(1)).unwrap().clone();
    // The same schema keeps the last transaction, so that the session can resume.
    replica.prepare(&test_schema(), &Selection::new().all("T").columns("U", &["x"]));
    assert_eq!(replica.last_txn(), Some(Uuid(5)));
    let rows = json!({"T": {
        uuid(1): {"initial": {"name": "same"}}, uuid(2): {"initial": {"name": "new"}}, uuid(4): {"initial": {}},
    }});
    let changes = replica.load(Method::MonitorCondSince, Some(Uuid::ZERO), &rows).unwrap();
    let kinds: Vec<_> = changes.table("T").map(|(uuid, c)| (uuid.0, c.kind())).collect();
    assert_eq!(kinds, [(2, ChangeKind::Modify), (3, ChangeKind::Delete), (4, ChangeKind::Insert)]);
    assert!(Arc::ptr_eq(replica.row("T", Uuid(1)).unwrap(), &same));
    assert_eq!(replica.last_txn(), None);
}

#[test]
fn another_schema_means_another_load() {
    let mut replica = replica();
    let rows = json!({"T": {uuid(1): {"initial": {"name": "a", "tag": 1}}}, "U": {uuid(2): {"initial": {"x": true}}}});
    replica.load(M2, Some(Uuid(5)), &rows).unwrap();
    let newer = schema(json!({"name": "D", "version": "2", "tables": {
        "T": {"columns": {"name": {"type": "string"}, "colour": {"type": "string"}}},
    }}));
    replica.prepare(&newer, &Selection::new().all("T").all("U"));
    assert_eq!(replica.last_txn(), None);
    assert_eq!(replica.monitor_requests(&newer), json!({"T": [{"columns": ["colour", "name"]}]}));
    let rows = json!({"T": {uuid(1): {"initial": {"name": "a"}}}});
    let changes = replica.load(M2, None, &rows).unwrap();
    assert_eq!(changes.get("U", Uuid(2)).unwrap().kind(), ChangeKind::Delete);
    let change = changes.get("T", Uuid(1)).unwrap();
    assert!(change.changed("colour") && change.changed("tag") && !change.changed("name"));
    replica.prepare(&newer, &Selection::new().all("T").all("U"));
    assert!(replica.table("U").is_none());
}

#[test]
fn changes_merge_to_what_remains() {
    let mut replica = replica();
    let mut all = replica.load(M2, None, &json!({"T": {uuid(1): {"initial": {"name": "a"}}}})).unwrap();
    for update in [
        json!({"T": {uuid(1): {"modify": {"name": "b"}}, uuid(2): {"insert": {}}}}),
        json!({"T": {uuid(2): {"delete": null}}}),
    ] {
        all.merge(replica.update(M2, None, &update).unwrap());
    }
    assert_eq!(all.len(), 1);
    let change = all.get("T", Uuid(1)).unwrap();
    assert_eq!((change.kind(), change.new.as_ref().unwrap().string("name")), (ChangeKind::Insert, Some("b")));
    let mut back = replica.update(M2, None, &json!({"T": {uuid(1): {"modify": {"name": "c"}}}})).unwrap();
    back.merge(replica.update(M2, None, &json!({"T": {uuid(1): {"modify": {"name": "b"}}}})).unwrap());
    assert!(back.is_empty());
}

/// A row as a test sees it: name, tag, set, map.
type Plain = (String, Option<i64>, std::collections::BTreeSet<i64>, BTreeMap<String, String>);
type Model = BTreeMap<u128, Plain>;

fn plain_row() -> impl Strategy<Value = Plain> {
    (
        "[ab]{0,2}",
        prop::option::of(0i64..3),
        prop::collection::btree_set(0i64..6, 0..4),
        prop::collection::btree_map("[a-c]", "[xy]", 0..3),
    )
}

fn model() -> impl Strategy<Value = Model> {
    prop::collection::btree_map(1u128..6, plain_row(), 0..5)
}

fn data(row: &Plain) -> [(&'static str, Datum); 4] {
    let (name, tag, set, map) = row;
    [
        ("name", name.as_str().into()),
        ("tag", (*tag).into()),
        ("set", Datum::set(set.iter().copied())),
        ("map", Datum::map(map.iter().map(|(k, v)| (k.as_str(), v.as_str())))),
    ]
}

fn whole(row: &Plain) -> Value {
    Value::Object(data(row).into_iter().map(|(c, d)| (c.to_owned(), d.to_json())).collect())
}

/// `<row-update2>` from one row to another, made without the code under test.
fn difference(old: &Plain, new: &Plain) -> Value {
    let mut row = Map::new();
    if old.0 != new.0 {
        row.insert("name".into(), json!(new.0));
    }
    if old.1 != new.1 {
        row.insert("tag".into(), new.1.map_or(json!(["set", []]), |t| json!(t)));
    }
    if old.2 != new.2 {
        let toggled: Vec<_> = old.2.symmetric_difference(&new.2).collect();
        row.insert("set".into(), json!(["set", toggled]));
    }
    if old.3 != new.3 {
        let mut pairs: Vec<_> = new.3.iter().filter(|(k, v)| old.3.get(*k) != Some(v)).collect();
        pairs.extend(old.3.iter().filter(|(k, _)| !new.3.contains_key(*k)));
        row.insert("map".into(), json!(["map", pairs]));
    }
    json!({"modify": row})
}

fn updates(method: Method, old: &Model, new: &Model) -> Value {
    let mut rows = Map::new();
    for key in old.keys().chain(new.keys()) {
        let update = match (method, old.get(key), new.get(key)) {
            (_, Some(a), Some(b)) if a == b => continue,
            (Method::Monitor, Some(a), Some(b)) => json!({"old": {"name": a.0}, "new": whole(b)}),
            (Method::Monitor, None, Some(b)) => json!({"new": whole(b)}),
            (Method::Monitor, Some(a), _) => json!({"old": whole(a)}),
            (_, Some(a), Some(b)) => difference(a, b),
            (_, None, Some(b)) => json!({"insert": whole(b)}),
            (_, Some(_), _) => json!({"delete": null}),
            (_, None, None) => continue,
        };
        rows.insert(uuid(*key), update);
    }
    json!({"T": rows})
}

fn contents(replica: &Replica) -> Vec<(u128, Vec<(String, Datum)>)> {
    replica.rows("T").map(|r| (r.uuid().0, r.columns().map(|(c, d)| (c.to_owned(), d.clone())).collect())).collect()
}

fn expected(model: &Model) -> Vec<(u128, Vec<(String, Datum)>)> {
    let row = |row: &Plain| {
        let mut columns: Vec<_> = data(row).into_iter().map(|(c, d)| (c.to_owned(), d)).collect();
        columns.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, datum) in &mut columns {
            if name == "map" && datum.is_empty() {
                *datum = Datum::Map(Vec::new());
            }
        }
        columns
    };
    model.iter().map(|(key, plain)| (*key, row(plain))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_replica_follows_a_plain_model(states in prop::collection::vec(model(), 1..8), which in 0usize..3) {
        let method = [Method::Monitor, Method::MonitorCond, Method::MonitorCondSince][which];
        let mut replica = replica();
        let mut all = replica.load(method, None, &updates(method, &Model::new(), &states[0])).unwrap();
        for pair in states.windows(2) {
            let changes = replica.update(method, None, &updates(method, &pair[0], &pair[1])).unwrap();
            prop_assert_eq!(contents(&replica), expected(&pair[1]));
            let differ = (1u128..6).filter(|k| pair[0].get(k) != pair[1].get(k)).count();
            prop_assert_eq!(changes.len(), differ);
            all.merge(changes);
        }
        // All changes together lead from nothing to the last state.
        let last = states.last().unwrap();
        prop_assert_eq!(all.len(), last.len());
        prop_assert!(all.iter().all(|(_, _, c)| c.kind() == ChangeKind::Insert));
        // Loading the first state anew is the way back.
        let changes = replica.load(method, None, &updates(method, &Model::new(), &states[0])).unwrap();
        prop_assert_eq!(contents(&replica), expected(&states[0]));
        let differ = (1u128..6).filter(|k| states[0].get(k) != last.get(k)).count();
        prop_assert_eq!(changes.len(), differ);
    }
}

PRAGMA application_id = 1095981389;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE claims (
        spec_id TEXT PRIMARY KEY REFERENCES specs, owner TEXT NOT NULL, until NOT NULL) WITHOUT ROWID;
CREATE TABLE epochs (
        run_id INTEGER NOT NULL REFERENCES runs, epoch INTEGER NOT NULL,
        main_loss NOT NULL, auxiliary_loss, train_accuracy NOT NULL, validation_accuracy, test_accuracy,
        cosine, cosine_min, cosine_max, seconds NOT NULL,
        PRIMARY KEY (run_id, epoch)) WITHOUT ROWID;
INSERT INTO "epochs" VALUES(1,1,3.8874261138480710187e+00,3.7215507081565779579e-01,0.83403708697325,5.42682995378836685596e-01,NULL,0.331693815315638,-4.26045597764285743913e-01,7.36198488229157677054e-01,9.2014525724881474078e-02);
INSERT INTO "epochs" VALUES(1,2,2.74283501540092622406e-01,5.88660975495153282466e-01,5.32522573515659125575e-02,6.02427834780536741732e-02,5.74445830618578234805e-01,-1.92498591955146292065e-01,-9.87305876361443179867e-01,4.32361917687606345239e-01,0.077771032624866);
INSERT INTO "epochs" VALUES(2,1,7.91548669285750072788e-01,9.31395394803261722493e-01,2.14193443393106974781e-03,0.780818740038211,NULL,-1.22023490570749570949e-02,-7.47626148927731382087e-01,9.78930109456919161914e-01,7.56599185320431123075e-03);
INSERT INTO "epochs" VALUES(2,2,2.22807473898521202215e+00,6.53807971469908544293e-02,6.92539483251796594842e-01,8.44919396320862103877e-01,8.86103694197380886699e-01,1.44948335572181563613e-01,-0.514279041901416,5.44871463915933773591e-01,1.23915184795625243907e-01);
INSERT INTO "epochs" VALUES(3,1,1.54973683547754914613e+00,4.72091701716343070671e-01,2.02610139226877095097e-01,8.55449761707960609768e-01,NULL,8.35427476814097902391e-02,-7.39395378979596396007e-01,4.16408666054769227571e-01,5.9269897728468370901e-02);
CREATE TABLE failures (
        request_id INTEGER PRIMARY KEY REFERENCES requests, reason TEXT NOT NULL, created TEXT NOT NULL);
INSERT INTO "failures" VALUES(4,'out of memory','2025-01-01T00:00:05.000000+00:00');
CREATE TABLE measurements (
        spec_id TEXT NOT NULL REFERENCES specs, name TEXT NOT NULL, attempt INTEGER NOT NULL,
        epoch INTEGER NOT NULL, value TEXT NOT NULL, created TEXT NOT NULL,
        PRIMARY KEY (spec_id, name, attempt, epoch)) WITHOUT ROWID;
INSERT INTO "measurements" VALUES('d1fb7266e6c8491f','sharpness',1,0,'0.1','2025-01-01T00:00:04.000000+00:00');
INSERT INTO "measurements" VALUES('d1fb7266e6c8491f','sharpness',1,2,'[1,null]','2025-01-01T00:00:04.000000+00:00');
CREATE TABLE requests (
        id INTEGER PRIMARY KEY, spec_id TEXT NOT NULL REFERENCES specs, runs_before INTEGER NOT NULL,
        created TEXT NOT NULL);
INSERT INTO "requests" VALUES(1,'d1fb7266e6c8491f',0,'2025-01-01T00:00:00.000000+00:00');
INSERT INTO "requests" VALUES(2,'a84fe1e472e9f94a',0,'2025-01-01T00:00:00.000000+00:00');
INSERT INTO "requests" VALUES(3,'3edf75d50fd66b1b',0,'2025-01-01T00:00:00.000000+00:00');
INSERT INTO "requests" VALUES(4,'b1e70e1b3c2361c4',0,'2025-01-01T00:00:00.000000+00:00');
CREATE TABLE runs (
        id INTEGER PRIMARY KEY, spec_id TEXT NOT NULL REFERENCES specs, attempt INTEGER NOT NULL,
        outcome TEXT NOT NULL, device TEXT NOT NULL, path TEXT NOT NULL, seconds NOT NULL,
        python TEXT NOT NULL, torch TEXT NOT NULL, asymtrain TEXT NOT NULL,
        "commit" TEXT NOT NULL, dirty INTEGER NOT NULL, source TEXT NOT NULL, created TEXT NOT NULL,
        UNIQUE (spec_id, attempt));
INSERT INTO "runs" VALUES(1,'d1fb7266e6c8491f',1,'finished','cpu','reference',1.69785558349747456308e-01,'3.11.7','2.13.0','0.1.0','source-0123456789abcdef',0,'0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef','2025-01-01T00:00:01.000000+00:00');
INSERT INTO "runs" VALUES(2,'d1fb7266e6c8491f',2,'finished','cpu','reference',1.31481176648829550801e-01,'3.11.7','2.13.0','0.1.0','source-0123456789abcdef',0,'0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef','2025-01-01T00:00:02.000000+00:00');
INSERT INTO "runs" VALUES(3,'a84fe1e472e9f94a',1,'diverged','NVIDIA H200','stacked',5.9269897728468370901e-02,'3.11.7','2.13.0','0.1.0','source-0123456789abcdef',0,'0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef','2025-01-01T00:00:03.000000+00:00');
CREATE TABLE specs (
        id TEXT PRIMARY KEY, dataset TEXT NOT NULL, arch TEXT NOT NULL, variant TEXT NOT NULL, seed INTEGER,
        spec TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "specs" VALUES('3edf75d50fd66b1b','shapes','mlp','asymmetric',3,'{"epochs":2,"seed":3}');
INSERT INTO "specs" VALUES('a84fe1e472e9f94a','shapes','mlp','asymmetric',2,'{"epochs":2,"seed":2}');
INSERT INTO "specs" VALUES('b1e70e1b3c2361c4','shapes','mlp','asymmetric',4,'{"epochs":2,"seed":4}');
INSERT INTO "specs" VALUES('d1fb7266e6c8491f','shapes','mlp','asymmetric',1,'{"epochs":2,"seed":1}');
CREATE INDEX requests_by_spec ON requests (spec_id);
CREATE VIEW latest_runs AS
        SELECT * FROM runs AS run
        WHERE attempt = (SELECT max(attempt) FROM runs WHERE spec_id = run.spec_id);
CREATE VIEW open_requests AS
        SELECT request.id, request.spec_id, request.created, failure.reason, failure.created AS failed
        FROM requests AS request LEFT JOIN failures AS failure ON failure.request_id = request.id
        WHERE request.id = (SELECT max(id) FROM requests WHERE spec_id = request.spec_id)
          AND request.runs_before >= (SELECT count(*) FROM runs WHERE spec_id = request.spec_id);
CREATE VIEW results AS
        SELECT spec.dataset, spec.arch, spec.variant, spec.seed, run.outcome, last.epoch AS epochs,
               last.validation_accuracy, last.test_accuracy, last.cosine, round(run.seconds, 1) AS seconds,
               run.device, spec.id AS spec_id
        FROM latest_runs AS run JOIN specs AS spec ON spec.id = run.spec_id
        LEFT JOIN epochs AS last ON last.run_id = run.id
          AND last.epoch = (SELECT max(epoch) FROM epochs WHERE run_id = run.id)
        ORDER BY spec.dataset, spec.arch, spec.variant, spec.seed, spec.id;
CREATE TRIGGER specs_no_update BEFORE update ON specs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER specs_no_delete BEFORE delete ON specs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER runs_no_update BEFORE update ON runs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER runs_no_delete BEFORE delete ON runs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER epochs_no_update BEFORE update ON epochs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER epochs_no_delete BEFORE delete ON epochs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER measurements_no_update BEFORE update ON measurements BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER measurements_no_delete BEFORE delete ON measurements BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER requests_no_update BEFORE update ON requests BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER requests_no_delete BEFORE delete ON requests BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER failures_no_update BEFORE update ON failures BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER failures_no_delete BEFORE delete ON failures BEGIN SELECT raise(ABORT, 'append-only'); END;
COMMIT;

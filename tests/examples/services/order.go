// An order and the run that fulfils it, in one transaction of this service; then a signal, and the result.
//
//	DATABASE_URL=postgres://shop@localhost/shop order 42 19.90
//
// The engine is the schema `durable` of the service's own database: there is nothing to import but a driver.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	_ "github.com/lib/pq"
)

// place writes the order and starts its run: both are there, or neither is.
func place(ctx context.Context, db *sql.DB, order, amount string) (run string, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback() // does nothing after the commit
	if err = tx.QueryRowContext(ctx,
		`select durable.start('fulfil', jsonb_build_object('order', $1::bigint), id => 'order-' || $1)`,
		order).Scan(&run); err != nil {
		return "", err
	}
	// an order that is there already fails here, and its run was never started
	if _, err = tx.ExecContext(ctx, `insert into orders (id, amount) values ($1, $2)`, order, amount); err != nil {
		return "", err
	}
	return run, tx.Commit()
}

// result looks until the run has ended; each look is one short statement and holds nothing.
func result(ctx context.Context, db *sql.DB, run string) (json.RawMessage, error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		var state string
		var value, problem []byte
		row := db.QueryRowContext(ctx, `select state, value, error from durable.result($1)`, run)
		if err := row.Scan(&state, &value, &problem); err != nil {
			return nil, err
		}
		switch state {
		case "resolved":
			return value, nil
		case "pending":
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(pause):
			}
		default:
			return nil, fmt.Errorf("run %s is %s: %s", run, state, problem)
		}
	}
}

func min(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	run, err := place(ctx, db, os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	// the same `dedup` is the same signal, however often the webhook comes
	if _, err = db.ExecContext(ctx,
		`select durable.signal($1, 'paid', jsonb_build_object('by', 'card'), dedup => 'payment-' || $1)`, run); err != nil {
		log.Fatal(err)
	}
	value, err := result(ctx, db, run)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(value))
}

// Reads everything of the views that it is given: every value has a type that lib/pq knows.
package main

import (
	"database/sql"
	"fmt"
	"log"
	"os"

	_ "github.com/lib/pq"
)

func read(db *sql.DB, view string) (count int, err error) {
	rows, err := db.Query("select * from durable." + view)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return 0, err
	}
	for rows.Next() {
		values := make([]any, len(names))
		for n := range values {
			values[n] = new(any)
		}
		if err = rows.Scan(values...); err != nil {
			return 0, err
		}
		for n, value := range values {
			if text, is := (*value.(*any)).([]byte); is && string(text) == "infinity" {
				return 0, fmt.Errorf("%s is %s", names[n], text)
			}
		}
		count++
	}
	return count, rows.Err()
}

func main() {
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	for _, view := range os.Args[1:] {
		count, err := read(db, view)
		if err != nil {
			log.Fatal(view, ": ", err)
		}
		fmt.Println(view, count)
	}
}

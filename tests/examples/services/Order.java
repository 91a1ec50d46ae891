import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

/**
 * An order and the run that fulfils it, in one transaction of this service; then a signal, and the result.
 *
 * <pre>DATABASE_URL=jdbc:postgresql://localhost/shop?user=shop java -cp postgresql.jar:. Order 42 19.90</pre>
 *
 * The engine is the schema {@code durable} of the service's own database: there is nothing to import but a driver.
 */
public final class Order {
    /** Writes the order and starts its run: both are there, or neither is. */
    static String place(Connection db, long order, String amount) throws SQLException {
        db.setAutoCommit(false);
        try (PreparedStatement start = db.prepareStatement(
                     "select durable.start('fulfil', jsonb_build_object('order', ?), id => ?)");
             PreparedStatement insert = db.prepareStatement(
                     "insert into orders (id, amount) values (?, ?::numeric)")) {
            start.setLong(1, order);
            start.setString(2, "order-" + order);
            ResultSet started = start.executeQuery();
            started.next();
            // an order that is there already fails here, and its run was never started
            insert.setLong(1, order);
            insert.setString(2, amount);
            insert.executeUpdate();
            String run = started.getString(1);
            db.commit();
            return run;
        } catch (SQLException error) {
            db.rollback();
            throw error;
        } finally {
            db.setAutoCommit(true);
        }
    }

    /** Looks until the run has ended; each look is one short statement and holds nothing. */
    static String result(Connection db, String run) throws SQLException, InterruptedException {
        try (PreparedStatement look = db.prepareStatement("select state, value, error from durable.result(?)")) {
            look.setString(1, run);
            for (long pause = 10; ; pause = Math.min(2 * pause, 1000)) {
                ResultSet found = look.executeQuery();
                found.next();
                String state = found.getString("state");
                if (state.equals("resolved")) {
                    return found.getString("value");
                }
                if (!state.equals("pending")) {
                    throw new IllegalStateException(run + " is " + state + ": " + found.getString("error"));
                }
                Thread.sleep(pause);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        try (Connection db = DriverManager.getConnection(System.getenv("DATABASE_URL"))) {
            String run = place(db, Long.parseLong(args[0]), args[1]);
            // the same `dedup` is the same signal, however often the webhook comes
            try (PreparedStatement signal = db.prepareStatement(
                    "select durable.signal(?, 'paid', jsonb_build_object('by', 'card'), dedup => ?)")) {
                signal.setString(1, run);
                signal.setString(2, "payment-" + run);
                signal.executeQuery();
            }
            System.out.println(result(db, run));
        }
    }
}

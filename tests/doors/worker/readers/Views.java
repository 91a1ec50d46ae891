import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/** Reads everything of the views that it is given: every value has a type that the JDBC driver knows. */
public final class Views {
    static int read(Connection db, String view) throws SQLException {
        int count = 0;
        try (Statement look = db.createStatement();
             ResultSet rows = look.executeQuery("select * from durable." + view)) {
            int columns = rows.getMetaData().getColumnCount();
            for (; rows.next(); count++) {
                for (int n = 1; n <= columns; n++) {
                    rows.getObject(n);
                    if ("infinity".equals(rows.getString(n))) {
                        throw new SQLException(view + "." + rows.getMetaData().getColumnName(n) + " is infinity");
                    }
                }
            }
        }
        return count;
    }

    public static void main(String[] views) throws SQLException {
        try (Connection db = DriverManager.getConnection(System.getenv("DATABASE_URL"))) {
            for (String view : views) {
                System.out.println(view + " " + read(db, view));
            }
        }
    }
}

package rockdove.e2e;

/** The same where the server presents itself as PoppyDB: Morphium registers its queue and takes lock_released events. */
class PoppydbMixedTest extends MixedTest {
    @Override
    Rockdove start() throws Exception {
        return new Rockdove("--personality", "poppydb");
    }

    @Override
    int exclusive() {
        return Math.min(1000, super.exclusive());
    }
}
